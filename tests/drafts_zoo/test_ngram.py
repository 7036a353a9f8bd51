"""`make drafts-zoo` finds sources of NGRAM that draft, keep or accept something else."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from checks.drafts_zoo import texts as drafted_texts
from checks.drafts_zoo.__main__ import check
from checks.drafts_zoo.acceptance import find_other_acceptance
from checks.drafts_zoo.format import DraftFiles
from checks.drafts_zoo.formats import all_formats
from checks.drafts_zoo.ngram import (
    REPEATING_PROMPTS,
    NgramFormat,
    find_accepted_setting,
    find_other_text_state,
    find_wrong_draft,
    slow_chains,
)
from checks.drafts_zoo.texts import find_other_text
from specdecode_engine.speculate.ngram import texts
from specdecode_engine.speculate.ngram.sources import DraftLimits, NgramDraft, PromptLookup, Text

NAMES = ("ngram-suffix", "ngram-prompt", "ngram-trie")
SEED = 1


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ngram_format(name: str) -> NgramFormat:
    found = all_formats()[name]
    assert isinstance(found, NgramFormat)
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> DraftFiles:
    return ngram_format(NAMES[0]).write(tmp_path_factory.mktemp("files"), SEED)


@pytest.mark.parametrize("name", NAMES)
def test_a_right_source_passes_every_check(name: str) -> None:
    assert list(check(ngram_format(name), SEED, cases=1)) == []


@pytest.mark.parametrize("name", NAMES)
def test_another_source_drafts_other_tokens(name: str, files: DraftFiles) -> None:
    other = ngram_format(NAMES[NAMES.index(name) - 1])
    mixed = replace(ngram_format(name), slow_text=other.slow_text)
    found = find_wrong_draft(mixed, files)
    assert found is not None
    assert "was drafted, not" in found


def test_shorter_matches_have_another_acceptance(files: DraftFiles) -> None:
    form = ngram_format("ngram-prompt")
    short = replace(form, speculation={"ngram": {"source": "prompt", "min_match": 1}})
    found = find_other_acceptance(form, files, slow_chains(short, files), REPEATING_PROMPTS)
    assert found is not None
    assert "simulated" in found


def test_a_lookup_in_half_of_the_text_drafts_other_tokens(
    files: DraftFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = PromptLookup.draft

    def halved(lookup: PromptLookup, context: "Text[int]", limits: DraftLimits) -> NgramDraft:
        return draft(lookup, context[len(context) // 2 :], limits)

    monkeypatch.setattr(PromptLookup, "draft", halved)
    found = find_wrong_draft(ngram_format("ngram-prompt"), files)
    assert found is not None
    assert "was drafted, not" in found


def test_new_tokens_without_those_before_them_are_another_state(
    files: DraftFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(text: texts._TrieText, tokens: list[int]) -> None:
        text._text.extend(tokens)
        text._trie.insert(text._text, len(tokens))

    monkeypatch.setattr(texts._TrieText, "append", append)
    found = find_other_text_state(ngram_format("ngram-trie"), files, SEED)
    assert found is not None
    assert "from a fresh text" in found


def test_texts_without_a_draft_are_no_evidence(
    files: DraftFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafted_texts, "MOST_RUN", 3)
    settings = {"source": "prompt", "min_match": 128, "max_depth": 128}
    form = replace(ngram_format("ngram-prompt"), speculation={"ngram": settings})
    assert find_other_text(form, files, SEED, cases=1) == "only 0 of 3 cases drafted anything"


def test_a_setting_that_is_accepted_or_not_named_is_found(files: DraftFiles) -> None:
    form = ngram_format("ngram-suffix")
    harmless = replace(form, refused=(("scope", {"ngram": {"scope": "model"}}),))
    assert find_accepted_setting(harmless, files) == "{'ngram': {'scope': 'model'}} was accepted"
    misnamed = replace(form, refused=(("capacity", {"ngram": {"max_depth": 0}}),))
    found = find_accepted_setting(misnamed, files)
    assert found is not None
    assert "does not name capacity: speculation.ngram.max_depth" in found
