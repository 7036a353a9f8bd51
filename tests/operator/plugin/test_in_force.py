"""What is in force, and the patches that adopt it or return to an earlier revision."""

import pytest

from specdecode_api.table import TableEntry
from specdecode_operator.objects.merge_patch import merge_patch
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.in_force import (
    adoption,
    chosen_revision,
    in_force,
    read_revisions,
    rollback,
)
from specdecode_operator.trial.record.candidate import batch_sizes
from specdecode_operator.trial.record.revisions import revision

SPEC = {
    "model": {"uri": "pvc://models/x"},
    "pageSize": 16,
    "replicas": 3,
    "rollout": {"mode": "Auto"},
    "speculation": {"topk": 1, "adaptive": {"batchSizes": [{"from": 1, "candidateSteps": [3]}]}},
}
ACCEPTED = {name: value for name, value in SPEC.items() if name not in ("replicas", "rollout")}
TABLE = {
    "8": TableEntry(candidate_steps=(0,)),
    "1": TableEntry(candidate_steps=(0, 3), ema_alpha=0.5),
}
OLD = revision("chat", 1, {**ACCEPTED, "engine": {"image": "e:1"}}, "v1-a")
TUNED = revision("chat", 2, {**ACCEPTED, "engine": {"image": "e:2"}}, "v1-b", TABLE)
ALL = [TUNED, OLD]


def resource(**effective):
    status = {"status": {"effective": effective}} if effective else {}
    return {"metadata": {"name": "chat"}, "spec": SPEC, **status}


@pytest.mark.parametrize(
    "effective", [{}, {"reason": "FollowsSpec", "revision": OLD.name}, {"reason": "Guarded"}]
)
def test_the_spec_is_in_force_where_nothing_overrides_it(effective):
    running = in_force(resource(**effective), ALL)
    assert running.spec == SPEC
    assert adoption(resource(**effective), running, with_image=True) == {}


def test_a_promoted_revision_is_in_force_with_its_table():
    running = in_force(resource(reason="Promoted", revision=TUNED.name), ALL)
    assert running.revision == TUNED
    assert running.spec["replicas"] == 3
    assert running.spec["speculation"] == {
        "topk": 1,
        "adaptive": {"batchSizes": batch_sizes(TABLE)},
    }


def test_a_table_is_written_as_in_the_spec():
    assert batch_sizes(TABLE) == [
        {"from": 1, "candidateSteps": [0, 3], "emaAlpha": 0.5},
        {"from": 8, "candidateSteps": [0]},
    ]


def test_a_lost_revision_is_an_error_with_the_remedy():
    with pytest.raises(PluginError, match="condition StateLost with the remedy"):
        in_force(resource(reason="Promoted", revision="chat-gone"), ALL)


def test_adopting_makes_the_spec_equal_to_what_is_in_force():
    manifest = resource(reason="Promoted", revision=TUNED.name)
    running = in_force(manifest, ALL)
    patch = adoption(manifest, running, with_image=True)
    assert merge_patch(SPEC, patch["spec"]) == running.spec
    assert patch["spec"].keys() == {"speculation", "engine"}
    assert adoption(manifest, running, with_image=False)["spec"].keys() == {"speculation"}


def test_a_rollback_goes_to_the_newest_other_revision():
    running = in_force(resource(reason="Promoted", revision=TUNED.name), ALL)
    assert chosen_revision(ALL, running, None) == OLD
    candidate = rollback(running, OLD)
    assert merge_patch(running.spec, candidate)["speculation"] == SPEC["speculation"]
    assert candidate["engine"] == {"image": "e:1"}


@pytest.mark.parametrize("wanted", ["2", TUNED.name])
def test_a_revision_is_chosen_by_number_or_name(wanted):
    assert chosen_revision(ALL, in_force(resource(), ALL), wanted) == TUNED


def test_an_unknown_revision_is_refused_with_those_there_are():
    running = in_force(resource(), ALL)
    with pytest.raises(PluginError) as caught:
        chosen_revision(ALL, running, "7")
    assert str(caught.value) == f"no revision 7; there are: 2 ({TUNED.name}), 1 ({OLD.name})"
    with pytest.raises(PluginError, match="no earlier revision"):
        chosen_revision([], running, None)


def test_a_rollback_to_what_is_in_force_is_refused():
    running = in_force(resource(reason="Promoted", revision=OLD.name), ALL)
    with pytest.raises(PluginError, match="is in force already"):
        rollback(running, OLD)


def test_a_rollback_over_another_model_is_refused():
    other = revision("chat", 1, {**ACCEPTED, "model": {"uri": "pvc://models/y"}}, "v1-c")
    with pytest.raises(PluginError, match="also has another model; edit these parts"):
        rollback(in_force(resource(), [other]), other)


def test_an_unreadable_revision_is_an_error_of_the_command():
    with pytest.raises(PluginError, match="ControllerRevision chat-1 cannot be read"):
        read_revisions([{"metadata": {"name": "chat-1"}, "data": {}}])
