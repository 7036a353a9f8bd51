"""On the real node, under requests that never stop: trials come to the right end by themselves.

The act is one of `make rollout-suite`; the others take longer than a suite may, and have not been
played to their end yet.
"""

import pytest

from traffic.scene import staged
from trials import acts
from trials.__main__ import play

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def scene(cluster):
    """Two engines under traffic, whose answers are compared with plain decoding."""
    with staged(cluster) as scene:
        yield scene


@pytest.mark.parametrize("act", [acts.too_deep], ids=lambda act: act.__name__)
def test_an_act_ends_as_it_must_and_no_request_fails(scene, act) -> None:
    outcome = play(scene, [act])
    assert outcome["passed"], outcome
