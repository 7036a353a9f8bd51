"""A verdict can be judged again from what the status keeps, by the same judge."""

import copy
import json
import random
from typing import Any

import pytest
import yaml

from specdecode_operator.__main__ import main
from specdecode_operator.commands import replay


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
def file_of(tmp_path):
    """Save trials as `kubectl get` does."""

    def save(items):
        file = tmp_path / "trials.yaml"
        file.write_text(yaml.safe_dump({"kind": "List", "items": copy.deepcopy(items)}))
        return file

    return save


def test_every_verdict_comes_out_again(deciding, file_of, capsys):
    trials = list(deciding.trials.values())
    file = file_of(trials)
    assert main(["replay", str(file)]) == 0
    output = capsys.readouterr().out
    assert output.count("the same") == 2
    assert all(f"trial {each['metadata']['name']}, " in output for each in trials)
    found = replay.replay(str(file), file.read_text())
    assert {each.trial.strategy for each in found} == {"Hot", "Canary"}
    assert all(each.was_the_judges for each in found)


def test_a_trial_that_runs_is_judged_by_what_it_has_measured(world, speculate, file_of, capsys):
    made = world()
    made.edit(speculation=speculate(3))
    assert made.run(300, until=lambda w: w.record.trial and w.record.trial.evidence.pairs)
    made.reconcile()
    assert main(["replay", str(file_of(list(made.trials.values())))]) == 0
    assert "has not ended" in capsys.readouterr().out


def test_evidence_that_was_changed_is_noticed(deciding, file_of, capsys):
    trial = copy.deepcopy(next(iter(deciding.trials.values())))
    trial["status"]["evidence"]["verdict"] = "Promote"
    assert main(["replay", str(file_of([trial]))]) == 1
    assert "NOT the same" in capsys.readouterr().out


def test_a_file_without_a_trial_is_refused(tmp_path, capsys):
    file = tmp_path / "empty.yaml"
    file.write_text("a: 1")
    assert main(["replay", str(file)]) == 2
    assert "no trial with evidence" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("kind: Pod", "has no trial with evidence: its kind is 'Pod'"),
        ("3", "is 3, not an object"),
        ("{kind: List, items: [{kind: SpecDecodeTrial, status: 7}]}", ".items[0].status is 7"),
        ("{kind: SpecDecodeTrial, status: {evidence: [1]}}", "evidence must be an object with"),
        ("{kind: SpecDecodeTrial, status: {evidence: '{'}}", "evidence must be an object with"),
        ("{kind: SpecDecodeTrial, metadata: {name: a}}", "has no trial with evidence"),
        ("a: [", "is neither YAML nor JSON"),
        ("[" * 1200, "is neither YAML nor JSON"),
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
