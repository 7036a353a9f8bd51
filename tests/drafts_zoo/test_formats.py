"""`make drafts-zoo` finds drafters that draft, keep or load something else than their format."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import checks.drafts_zoo.__main__ as zoo
from checks.drafts_zoo.__main__ import check, read_list
from checks.drafts_zoo.acceptance import find_other_acceptance
from checks.drafts_zoo.drafting import draft_chain, find_wrong_token
from checks.drafts_zoo.format import DraftFiles, DraftFormat
from checks.drafts_zoo.formats import all_formats
from checks.drafts_zoo.formats.eagle3 import LAYOUTS, Eagle3Reference
from checks.drafts_zoo.loading import find_unnamed_fault
from checks.drafts_zoo.states import find_other_state
from checks.drafts_zoo.texts import find_other_text
from specdecode_engine.batch.request_table import DecodeBatch
from specdecode_engine.speculate.draft_state import HiddenStateRing

NAME = "eagle3-window-bin"
SEED = 1


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def form() -> DraftFormat:
    found = all_formats()[NAME]
    assert isinstance(found, DraftFormat)
    return found


@pytest.fixture(scope="module")
def files(form: DraftFormat, tmp_path_factory: pytest.TempPathFactory) -> DraftFiles:
    return form.write(tmp_path_factory.mktemp("files"), SEED)


@pytest.mark.parametrize("name", read_list())
def test_every_listed_format_is_built(name: str) -> None:
    assert name in all_formats()


def test_every_format_is_listed() -> None:
    assert set(all_formats()) <= set(read_list())


def test_a_listed_format_that_is_not_built_fails_the_zoo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(zoo, "check", lambda form, seed, cases: iter(()))
    for names, status in ((["eagle"], 0), (["eagle", "of-tomorrow"], 1)):
        monkeypatch.setattr(zoo, "read_list", lambda names=names: names)
        monkeypatch.setattr(sys, "argv", ["drafts_zoo"])
        assert zoo.main() == status
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (report["formats"], report["missing"]) == (1, names[1:])


def test_a_right_drafter_passes_every_check(form: DraftFormat) -> None:
    assert list(check(form, SEED, cases=2)) == []


def test_another_window_drafts_other_tokens_with_other_acceptance(
    form: DraftFormat, files: DraftFiles
) -> None:
    wide = Eagle3Reference.open(replace(LAYOUTS[NAME], window=None), files)
    found = find_wrong_token(form, files, wide)
    assert found is not None
    assert "was drafted, the reference drafts" in found
    unscored = partial(replace, LAYOUTS[NAME], norm_before_residual=True)
    unlike = Eagle3Reference.open(unscored(), files)
    other = find_other_acceptance(
        form, files, lambda committed, room: draft_chain(unlike, committed, form.num_steps)
    )
    assert other is not None
    assert "simulated" in other


def test_hidden_states_of_the_wrong_position_are_another_state(
    form: DraftFormat, files: DraftFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = HiddenStateRing.write_rows

    def shifted(ring: HiddenStateRing, batch: DecodeBatch, hidden: Tensor) -> None:
        write(ring, batch, hidden.roll(1, dims=1))

    monkeypatch.setattr(HiddenStateRing, "write_rows", shifted)
    found = find_other_state(form, files, SEED)
    assert found is not None
    assert "differ from those after a prefill" in found
    assert find_other_text(form, files, SEED, cases=1) is None, "speculation changes no text"


def test_a_tensor_that_may_not_be_absent_is_named(
    form: DraftFormat, files: DraftFiles, tmp_path: Path
) -> None:
    strict = replace(form, optional=frozenset[str]())
    found = find_unnamed_fault(strict, files, tmp_path / "damaged")
    assert found == "t2d was deleted, and the draft was loaded"
