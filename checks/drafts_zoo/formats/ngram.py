"""NGRAM's three sources, and a target whose texts repeat themselves in part."""

from collections.abc import Sequence
from pathlib import Path

import torch

from checks.drafts_zoo.files import read_tensors, tensor_file, write_tensors
from checks.drafts_zoo.format import DraftFiles
from checks.drafts_zoo.ngram import NgramFormat
from checks.drafts_zoo.targets import VOCAB, write_target
from specdecode_api.boot import NgramBoot
from specdecode_engine.speculate.ngram.sources import DraftLimits, NgramDraft
from tests.engine.speculate.ngram.slow_sources import Limits, SlowSuffixes, SlowTrie, slow_lookup

CYCLE = 6  # tokens
STRENGTH = 10.0
"""Factor of the embedding: the greater, the less do layers change, and the longer are cycles."""


def _write(folder: Path, seed: int) -> DraftFiles:
    """Write a target whose head scores the next token of the last token's cycle, layers aside."""
    files = DraftFiles(folder / "target")
    write_target(files.target)
    tensors = read_tensors(files.target)
    embedding = tensors["model.embed_tokens.weight"]
    tokens = torch.arange(VOCAB)
    following = tokens - tokens % CYCLE + (tokens + 1) % CYCLE
    head = torch.zeros_like(embedding).index_add(0, following.clamp(max=VOCAB - 1), embedding)
    tensors["model.embed_tokens.weight"] = embedding * STRENGTH
    write_tensors(tensor_file(files.target), {**tensors, "lm_head.weight": head})
    return files


class _SlowSuffixText:
    def __init__(self, settings: NgramBoot) -> None:
        factor, least = settings.max_spec_factor, settings.min_token_probability
        self._source = SlowSuffixes(settings.depth, factor, least)
        self._source.texts.append([])

    def append(self, tokens: Sequence[int]) -> None:
        self._source.texts[0] += tokens

    def draft(self, limits: DraftLimits) -> NgramDraft:
        draft, _, _ = self._source.draft(self._source.texts[0], Limits(*limits))
        return NgramDraft(draft.tokens, draft.parents)


class _SlowLookupText:
    def __init__(self, settings: NgramBoot) -> None:
        self._settings = settings
        self._text: list[int] = []

    def append(self, tokens: Sequence[int]) -> None:
        self._text += tokens

    def draft(self, limits: DraftLimits) -> NgramDraft:
        bounds = self._settings.shortest_match, self._settings.depth
        most = min(limits.max_tokens, limits.max_depth)
        found = slow_lookup(self._text, *bounds, most)
        return NgramDraft(found, list(range(len(found))))


class _SlowTrieText:
    """New tokens are inserted with those before them that paths to them begin with."""

    def __init__(self, settings: NgramBoot) -> None:
        breadths = settings.min_breadth, settings.max_breadth
        self._source = SlowTrie(settings.depth, settings.capacity, *breadths, by_count=False)
        self._text: list[int] = []

    def append(self, tokens: Sequence[int]) -> None:
        self._text += tokens
        self._source.insert(self._text[-(self._source.depth + len(tokens) - 1) :])

    def draft(self, limits: DraftLimits) -> NgramDraft:
        draft = self._source.draft(self._text, Limits(*limits))
        return NgramDraft(draft.tokens, draft.parents)


FORMATS = (
    NgramFormat(
        name="ngram-suffix",
        write=_write,
        slow_text=_SlowSuffixText,
        speculation={"ngram": {"source": "suffix"}},
    ),
    NgramFormat(
        name="ngram-prompt",
        write=_write,
        slow_text=_SlowLookupText,
        speculation={"ngram": {"source": "prompt"}},
        refused=(("scope", {"ngram": {"scope": "model"}}),),
    ),
    NgramFormat(
        name="ngram-trie",
        write=_write,
        slow_text=_SlowTrieText,
        speculation={"ngram": {"source": "trie"}},
    ),
)
