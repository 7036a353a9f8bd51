"""On the real node, under requests that never stop: nothing is lost, left over, or untrue.

The events are those of `make traffic`, which plays more of them.
"""

import pytest

from checks.traffic import changes, control, losses
from checks.traffic.load import MIXED_CLIENTS
from checks.traffic.play import play
from checks.traffic.scene import staged

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def scene(cluster):
    """Two engines under traffic, whose answers are compared with plain decoding."""
    with staged(cluster, MIXED_CLIENTS) as scene:
        yield scene


def passes(scene, event):
    """Play an event; every request is answered, children are as they should be, status is true."""
    outcome = play(scene, event)
    assert outcome.faults() == []
    assert outcome.tally.streamed > 0
    return outcome


def test_a_hot_change_reaches_running_engines(scene) -> None:
    """A threshold of the table: through the mounted file, without a new pod or a lost request."""
    passes(scene, changes.hot_change)


def test_no_request_is_lost_in_scale_downs(scene) -> None:
    passes(scene, changes.scale_up_and_down)
    passes(scene, changes.scale_up)


def test_no_request_is_lost_when_a_pod_is_deleted(scene) -> None:
    passes(scene, losses.pod_deletion)


def test_a_killed_engine_costs_only_what_it_was_answering(scene) -> None:
    passes(scene, losses.engine_kill)


def test_no_request_is_lost_in_a_node_drain(scene) -> None:
    passes(scene, losses.node_drain)


def test_an_operator_killed_in_mid_roll_ends_the_roll_without_a_lost_request(scene) -> None:
    outcome = passes(scene, control.operator_kill)
    assert outcome.findings.fewest_ready >= 2


def test_a_roll_goes_on_after_the_api_server_was_killed(scene) -> None:
    passes(scene, control.api_server_restart)
