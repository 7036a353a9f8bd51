"""The termination message of an engine that cannot serve, for every kind of error."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specdecode_api import names
from specdecode_api.boot import EngineBoot
from specdecode_api.report import TerminationMessage, TerminationReason
from specdecode_engine.model.checkpoint.config_file import CheckpointError, DraftMismatch
from specdecode_engine.process import leave, termination_message_for
from specdecode_engine.serve.text.loading import TokenizerUnusable, load_text_model
from specdecode_engine.startup.config import CannotServe, resolve
from specdecode_engine.startup.memory import NotEnoughMemory

EXAMPLE = Path(__file__).parents[3] / "examples" / "models" / "target"
PROGRAM = (sys.executable, "-m", "specdecode_engine", "--management-port", "0")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture
def run(tmp_path):
    """Run the program to its end; return its exit code, termination message and log."""

    def to_its_end(*arguments):
        words = tmp_path / "termination-log"
        ended = subprocess.run(
            [*PROGRAM, "--host", "127.0.0.1", "--port", "0", *map(str, arguments)],
            env={**os.environ, names.VARIABLE_TERMINATION_MESSAGE_PATH: str(words)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return (
            ended.returncode,
            TerminationMessage.decode(words.read_text()),
            ended.stdout + ended.stderr,
        )

    return to_its_end


@pytest.fixture
def edited(checkpoints, tmp_path):
    """A copy of a checkpoint with another config.json."""

    def copy(name, **keys):
        folder = tmp_path / name
        shutil.copytree(getattr(checkpoints, name), folder)
        config = json.loads((folder / "config.json").read_text()) | keys
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return copy


def test_a_draft_that_does_not_fit_ends_the_process_with_the_numbers(checkpoints, edited, run):
    head = edited("eagle3", eagle_config={LAYER_IDS: [0, 1, 30]})
    code, words, log = run(
        *("--model-path", checkpoints.target, "--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", head, "--device", "cpu"),
    )
    assert code == 1, log
    assert words.reason == TerminationReason.DRAFT_MISMATCH, log
    assert "[0, 1, 30]" in words.message
    assert "the target's 3 layers" in words.message
    assert "Traceback" not in log


def test_a_bad_boot_file_ends_the_process_with_its_faults(run):
    code, words, _ = run("--page-size", "3")
    assert code == 2
    assert words.reason == TerminationReason.BOOT_FILE_INVALID
    assert words.message.splitlines()[0].startswith("there is no model: add --model-path FOLDER")
    assert "power of two" in words.message


def boot(target, draft, algorithm):
    speculation = {"algorithm": algorithm, "draft_path": str(draft), "num_steps": 2}
    document = {"model": {"path": str(target)}, "speculation": speculation}
    return EngineBoot.model_validate(document)


@pytest.mark.parametrize(
    ("algorithm", "name", "keys", "words"),
    [
        ("STANDALONE", "draft", {"vocab_size": 50}, ["50 tokens", "97"]),
        ("EAGLE", "eagle", {"vocab_size": 50}, ["vocab_size is 50", "97"]),
        ("EAGLE", "eagle", {"hidden_size": 96}, ["hidden_size is 96", "64"]),
        ("EAGLE3", "eagle3", {"vocab_size": 50}, ["vocab_size is 50", "97"]),
        ("EAGLE3", "eagle3", {"target_hidden_size": 96}, ["target_hidden_size is 96", "64"]),
        (
            "EAGLE3",
            "eagle3",
            {"eagle_config": {LAYER_IDS: [0, 2]}},
            ["fc.weight reads", "2 x 64 = 128"],
        ),
    ],
)
def test_a_pair_that_does_not_fit_is_found_before_weights_are_read(
    algorithm, name, keys, words, checkpoints, edited, tmp_path
):
    target = tmp_path / "target-without-weights"
    target.mkdir()
    shutil.copy(checkpoints.target / "config.json", target)
    with pytest.raises(DraftMismatch) as caught:
        resolve(boot(target, edited(name, **keys), algorithm))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["draft", "eagle", "eagle3"])
def test_pairs_that_fit_pass(name, checkpoints):
    algorithm = {"draft": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3"}[name]
    assert resolve(boot(checkpoints.target, getattr(checkpoints, name), algorithm)).draft


def test_a_draft_that_is_no_checkpoint_is_not_called_a_mismatch(checkpoints, tmp_path):
    with pytest.raises(CheckpointError, match="no such file") as caught:
        resolve(boot(checkpoints.target, tmp_path / "nothing", "STANDALONE"))
    assert termination_message_for(caught.value).reason == TerminationReason.CHECKPOINT_INVALID


def test_a_tokenizer_that_is_missing_is_a_fault_of_the_checkpoint(checkpoints, tmp_path):
    shutil.copy(checkpoints.target / "config.json", tmp_path)
    with pytest.raises(TokenizerUnusable, match=r"save a tokenizer\.json") as caught:
        load_text_model(tmp_path)
    words = termination_message_for(caught.value)
    assert words.reason == TerminationReason.CHECKPOINT_INVALID
    assert str(tmp_path) in words.message


def test_a_config_that_transformers_refuses_makes_the_tokenizer_unusable(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pretraining_tp": "0"}))
    (tmp_path / "model" / "tokenizer_config.json").unlink()  # else its class is known
    with pytest.raises(TokenizerUnusable, match="pretraining_tp"):
        load_text_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (DraftMismatch("50 and 97"), TerminationReason.DRAFT_MISMATCH, "50 and 97"),
        (NotEnoughMemory("8 of 9"), TerminationReason.NOT_ENOUGH_MEMORY, "8 of 9"),
        (CannotServe("no"), TerminationReason.CANNOT_SERVE, "no"),
        (ZeroDivisionError("x"), TerminationReason.ENGINE_FAILED, "ZeroDivisionError: x"),
        # this one has a `reason` of its own, which is not a TerminationReason
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
            TerminationReason.ENGINE_FAILED,
            "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: "
            "invalid start byte",
        ),
    ],
)
def test_errors_are_reported_in_a_word_and_a_sentence(error, reason, message):
    assert termination_message_for(error) == TerminationMessage(reason=reason, message=message)


def test_without_a_file_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    leave(TerminationMessage(reason=TerminationReason.CANNOT_SERVE, message="x"), {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_only_logged(tmp_path, caplog):
    environment = {names.VARIABLE_TERMINATION_MESSAGE_PATH: str(tmp_path / "no" / "folder")}
    leave(TerminationMessage(reason=TerminationReason.CANNOT_SERVE, message="x"), environment)
    assert "cannot leave the reason" in caplog.text
