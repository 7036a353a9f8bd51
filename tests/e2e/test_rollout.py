"""On the real node, under requests that never stop: trials come to the right end by themselves.

The acts are the short ones of `make rollout-suite`: mode Auto takes five to eight minutes to be
sure of a better table on a free machine, and pods that restart in turns take longer.
"""

import pytest

from checks.traffic.scene import staged
from checks.trials import acts
from checks.trials.__main__ import play

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]


SHORT = [acts.too_deep, acts.wrong_draft, acts.foreign_draft]


@pytest.fixture(scope="module")
def scene(cluster):
    """Two engines under traffic, whose answers are compared with plain decoding."""
    with staged(cluster) as scene:
        yield scene


@pytest.mark.parametrize("act", SHORT, ids=lambda act: act.__name__)
def test_an_act_ends_as_it_must_and_no_request_fails(scene, act) -> None:
    outcome = play(scene, [act])
    assert outcome["passed"], outcome
