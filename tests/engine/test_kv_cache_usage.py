"""What endpoint pickers read of the KV cache: the share in use, and the sizes of its pages."""

from typing import Any

from specdecode_api.metrics import core as metrics
from tests.engine.gpu_failures import make_core, requests


def test_usage_follows_the_pages_of_running_requests_and_not_those_that_are_cached(
    checkpoints: Any,
) -> None:
    core = make_core(checkpoints, "cpu", "off")
    pages = core.scheduler.pages
    assert core.snapshot()[metrics.KV_CACHE_USAGE] == 0
    (config,) = core.snapshot().values[metrics.CACHE_CONFIG_INFO]
    assert config == (str(pages.page_size), str(pages.total))
    for request in requests(checkpoints.vocab):
        core.submit(request)
    seen = []
    while core.has_work():
        core.step()
        usage = core.snapshot()[metrics.KV_CACHE_USAGE]
        assert usage == core.snapshot()[metrics.KV_PAGES, "used"] / pages.total
        seen.append(usage)
    assert 0 < max(seen) <= 1
    assert core.snapshot()[metrics.KV_CACHE_USAGE] == 0
    assert core.snapshot()[metrics.CACHE_PAGES] > 0, "cached pages count as free"
