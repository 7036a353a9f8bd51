"""A verdict can be judged again from what the status keeps, by the same judge."""

import copy
import json
import random
from typing import Any

import pytest
import yaml

from specdecode_operator import replay
from specdecode_operator.__main__ import main


@pytest.fixture
def deciding(world, speculate):
    """A resource with a trial in place that was rolled back, and one of a canary."""
    made = world(strategy="Auto", canary={"replicas": 5})
    made.speeds = {3: 0.03}
    made.edit(speculation=speculate(3))
    made.run_to_end()
    made.edit(pageSize=32)
    assert made.run(60, until=lambda w: w.record.trial)
    made.speeds[made.record.trial.target.arm.config_hash] = 0.03
    made.run_to_end()
    made.reconcile()
    return made


@pytest.fixture
def decided(deciding):
    return deciding.resource


def test_every_verdict_comes_out_again(decided, tmp_path, capsys):
    file = tmp_path / "resource.yaml"
    file.write_text(yaml.safe_dump(json.loads(json.dumps(decided))))
    assert main(["replay", str(file)]) == 0
    said = capsys.readouterr().out
    assert said.count("the same") == 2
    found = replay.replay(str(file), file.read_text())
    assert {each.trial.strategy for each in found} == {"Hot", "Canary"}
    assert all(each.was_the_judges for each in found)


def test_one_entry_of_a_history_is_enough(decided, tmp_path):
    file = tmp_path / "entry.json"
    file.write_text(json.dumps(decided["status"]["history"][0]))
    assert main(["replay", str(file)]) == 0


def test_evidence_that_was_changed_is_noticed(decided, tmp_path, capsys):
    entry = decided["status"]["history"][0]
    evidence = json.loads(entry["evidence"])
    evidence["verdict"] = "Promote"
    file = tmp_path / "entry.json"
    file.write_text(json.dumps(entry | {"evidence": json.dumps(evidence)}))
    assert main(["replay", str(file)]) == 1
    assert "NOT the same" in capsys.readouterr().out


def test_a_file_without_a_trial_is_refused(tmp_path, capsys):
    file = tmp_path / "empty.yaml"
    file.write_text("a: 1")
    assert main(["replay", str(file)]) == 2
    assert "no trial with evidence" in capsys.readouterr().err


def test_evidence_fits_into_the_status(decided):
    sizes = [len(entry["evidence"]) for entry in decided["status"]["history"]]
    assert max(sizes) < 65_536


def test_trials_are_replayed_from_their_objects(deciding, tmp_path, capsys):
    items = json.loads(json.dumps(list(deciding.trials.values())))
    file = tmp_path / "trials.yaml"
    file.write_text(yaml.safe_dump({"kind": "List", "items": items}))
    assert main(["replay", str(file)]) == 0
    said = capsys.readouterr().out
    assert said.count("the same") == 2
    assert all(f"trial {each['metadata']['name']}, " in said for each in items)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("kind: Pod", "has no trial with evidence: its kind is 'Pod'"),
        ("3", "is 3, not an object"),
        ("{kind: List, items: [{kind: SpecDecodeTrial, status: 7}]}", ".items[0].status is 7"),
        ("{kind: SpecDecodeTrial, status: {evidence: [1]}}", "evidence must be an object with"),
        ("{kind: SpecDecodeTrial, status: {evidence: '{'}}", "evidence is not JSON"),
        ("{kind: SpecDecodeTrial, metadata: {name: a}}", "has no trial with evidence"),
        ("a: [", "is neither YAML nor JSON"),
        ("[" * 5000, "is neither YAML nor JSON"),
    ],
)
def test_other_documents_are_refused_with_their_place(text, place, tmp_path, capsys):
    file = tmp_path / "document.yaml"
    file.write_text(text)
    assert main(["replay", str(file)]) == 2
    assert place in capsys.readouterr().err


def test_a_file_that_is_absent_is_an_error(tmp_path, capsys):
    assert main(["replay", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def places(document, path=()):
    """Paths of all values below a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def test_evidence_with_a_wrong_value_is_an_error_and_never_a_traceback(deciding):
    """One value of the evidence at a time, as an editor or another release may leave it."""
    generator = random.Random(7)
    wrong: tuple[Any, ...] = (None, "x", -1, 1.5, float("nan"), float("inf"), True, [], {}, 10**30)
    refusals = []
    for trial in json.loads(json.dumps(list(deciding.trials.values()))):
        paths = list(places(trial["status"]["evidence"]))
        for _ in range(150):
            changed = copy.deepcopy(trial)
            inside = changed["status"]["evidence"]
            *above, last = generator.choice(paths)
            for key in above:
                inside = inside[key]
            inside[last] = generator.choice(wrong)
            try:
                assert replay.replay("file", json.dumps(changed))
            except replay.ReplayError as error:
                refusals.append(str(error))
    assert len(refusals) > 150
    assert all("evidence" in refusal for refusal in refusals)
