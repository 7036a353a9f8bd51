"""A verdict can be judged again from what the status keeps, by the same judge."""

import json

import pytest
import yaml

from specdecode_operator import replay
from specdecode_operator.__main__ import main


@pytest.fixture
def decided(world, speculate):
    """A resource with a trial in place that was rolled back, and one of a canary."""
    made = world()
    made.speeds = {3: 0.03}
    made.edit(speculation=speculate(3))
    made.run_to_end()
    made.edit(pageSize=32)
    assert made.run(60, until=lambda w: w.record.trial)
    made.speeds[made.record.trial.target.arm.config_hash] = 0.03
    made.run_to_end()
    return made.resource


def test_every_verdict_comes_out_again(decided, tmp_path, capsys):
    file = tmp_path / "resource.yaml"
    file.write_text(yaml.safe_dump(json.loads(json.dumps(decided))))
    assert main(["replay", str(file)]) == 0
    said = capsys.readouterr().out
    assert said.count("the same") == 2
    found = replay.replay(str(file), file.read_text())
    assert {each.entry["kind"] for each in found} == {"Hot", "Canary"}
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
