"""Checks of NGRAM, which has no checkpoint: a slow restatement of its source drafts the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from checks.drafts_zoo.acceptance import DraftChain
from checks.drafts_zoo.engines import boot_of, build_drafting, decode
from checks.drafts_zoo.format import DraftFiles
from checks.drafts_zoo.states import build_restless, run_restless
from checks.drafts_zoo.targets import ANSWER_TOKENS
from specdecode_api.boot import NgramBoot
from specdecode_api.speculation import MAX_STEPS, Algorithm
from specdecode_engine.batch.sequence import Sequence as RequestSequence
from specdecode_engine.engine import EngineCore
from specdecode_engine.speculate.ngram.proposer import NgramProposer
from specdecode_engine.speculate.ngram.sources import DraftLimits, NgramDraft
from specdecode_engine.speculate.ngram.texts import DraftText, text_maker

REPEATING_PROMPTS = ((6, 7, 8, 9, 10, 11) * 3, (40, 41, 9, 42) * 4 + (40, 41), (5,), (24, 25) * 3)
LONGEST = 64  # more tokens than any request of a restless run has
CHAIN, TREE = DraftLimits(5, 5, 1), DraftLimits(12, 5, 3)


class SlowText(Protocol):
    """The text of a request, drafted after by a restatement of a source."""

    def append(self, tokens: Sequence[int]) -> None: ...

    def draft(self, limits: DraftLimits) -> NgramDraft: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramFormat:
    """One source of NGRAM, in scope request.

    `refused` are settings that this source alone refuses, as in `REFUSED`.
    """

    name: str
    write: Callable[[Path, int], DraftFiles]
    slow_text: Callable[[NgramBoot], SlowText]
    speculation: Mapping[str, object]
    refused: tuple[tuple[str, Mapping[str, object]], ...] = ()
    algorithm: Algorithm = Algorithm.NGRAM
    most_steps: int = MAX_STEPS
    num_steps: int = 3
    topks: tuple[int, ...] = (1, 3)
    least_accept_length: float = 1.3


REFUSED: tuple[tuple[str, Mapping[str, object]], ...] = (
    *(
        (name, {"ngram": {name: value}})
        for name, value in (
            ("source", "tree"),
            ("scope", "node"),
            ("max_depth", 0),
            ("max_depth", 129),
            ("min_match", 0),
            ("min_breadth", 0),
            ("max_breadth", 65),
            ("match", "DFS"),
            ("capacity", 0),
            ("min_token_probability", 1.5),
            ("max_spec_factor", 0),
            ("depth", 18),  # no such key
        )
    ),
    ("min_match", {"ngram": {"min_match": 9, "max_depth": 8}}),
    ("min_breadth", {"ngram": {"min_breadth": 9, "max_breadth": 8}}),
    ("draft_path", {"draft_path": "/draft"}),
    ("num_draft_tokens", {"num_draft_tokens": 99}),
    ("topk", {"topk": 0}),
    ("ngram", {"algorithm": "STANDALONE", "draft_path": "/draft", "ngram": {"max_depth": 8}}),
)
"""Settings that an error must name, by the field, as keys of `speculation` in the boot file."""


def find_accepted_setting(form: NgramFormat, files: DraftFiles) -> str | None:
    """Return the first bad setting that is accepted, or that no error names."""
    for name, keys in (*REFUSED, *form.refused):
        changed = {**form.speculation, **keys}
        if keys.keys() == {"ngram"}:
            changed["ngram"] = {**_settings(form), **_settings(replace(form, speculation=keys))}
        try:
            boot_of(replace(form, speculation=changed), files)
        except ValidationError as error:
            lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
            if not any(name in line for line in lines):
                return f"{dict(keys)}: the error does not name {name}: {'; '.join(lines)}"
        else:
            return f"{dict(keys)} was accepted"
    return None


def _settings(form: NgramFormat) -> dict[str, object]:
    settings = form.speculation["ngram"]
    assert isinstance(settings, dict)
    return settings


class PairedText:
    """A text of the engine next to a slow one; `difference` is the first draft that differs."""

    def __init__(self, text: DraftText, slow: SlowText) -> None:
        self._text, self._slow = text, slow
        self.drafted = 0  # tokens
        self.difference: str | None = None

    def __len__(self) -> int:
        return len(self._text)

    def append(self, tokens: list[int]) -> None:
        self._text.append(tokens)
        self._slow.append(tokens)

    def draft(self, limits: DraftLimits) -> NgramDraft:
        draft, expected = self._text.draft(limits), self._slow.draft(limits)
        self.drafted += len(draft.tokens)
        if draft != expected and self.difference is None:
            self.difference = f"after {len(self)} tokens {draft} was drafted, not {expected}"
        return draft

    def close(self, prompt_tokens: int) -> None:
        self._text.close(prompt_tokens)


def find_wrong_draft(form: NgramFormat, files: DraftFiles) -> str | None:
    """Decode with chains and trees; return the first draft that the slow source would not make."""
    for topk in form.topks:
        core = build_drafting(form, files, topk=topk)
        pairs = _pair_texts(core, form, files)
        decode(core, REPEATING_PROMPTS, ANSWER_TOKENS)
        if not sum(pair.drafted for pair in pairs):
            return f"topk {topk}: nothing was drafted"
        if differences := [pair.difference for pair in pairs if pair.difference]:
            return f"topk {topk}: {differences[0]}"
    return None


def _pair_texts(core: EngineCore, form: NgramFormat, files: DraftFiles) -> list[PairedText]:
    """Make a slow text next to each text that an engine makes from now on."""
    proposer, settings = _proposer(core), ngram_settings(form, files)
    make, pairs = proposer._make_text, list[PairedText]()

    def paired() -> PairedText:
        pairs.append(PairedText(make(), form.slow_text(settings)))
        return pairs[-1]

    proposer._make_text = paired
    return pairs


def slow_chains(form: NgramFormat, files: DraftFiles) -> DraftChain:
    """Return what drafts chains by the slow source; NGRAM drafts no token after the limit."""
    settings = ngram_settings(form, files)

    def draft(committed: Sequence[int], room: int) -> Sequence[int]:
        depth = min(form.num_steps, room)
        if depth < 1:
            return ()
        text = form.slow_text(settings)
        text.append(committed)
        return text.draft(DraftLimits(form.num_steps, depth, 1)).tokens

    return draft


def find_other_text_state(form: NgramFormat, files: DraftFiles, seed: int) -> str | None:
    """Run requests; return the first text that differs from a fresh one of the same tokens."""
    # Which child of a trie was used last depends on the tokens that are appended at once.
    deep = replace(form, speculation={"ngram": {**_settings(form), "max_depth": LONGEST}})
    core = build_restless(deep, files, seed)
    proposer, make_fresh = _proposer(core), text_maker(ngram_settings(deep, files), 1)

    def has_text(sequence: RequestSequence) -> bool:
        assert sequence.req_index is not None
        known = proposer._texts.get(sequence.req_index)
        return known is not None and known.sequence is sequence

    def difference(sequence: RequestSequence) -> str | None:
        assert sequence.req_index is not None
        text = proposer._texts[sequence.req_index].text
        tokens, fresh = sequence.tokens[: len(text)], make_fresh()
        fresh.append(tokens)
        if text_tokens(text) != tokens:
            return "the text has other tokens than the request"
        for limits in (CHAIN, TREE):
            found, expected = text.draft(limits), fresh.draft(limits)
            if found != expected:
                return f"{found} is drafted, {expected} from a fresh text"
        return None

    return run_restless(core, has_text, difference)


def text_tokens(text: DraftText) -> list[int]:
    """Return the tokens that a text of the engine has."""
    tokens: list[int] = vars(text)["_text"].tolist()
    return tokens


def ngram_settings(form: NgramFormat, files: DraftFiles) -> NgramBoot:
    """Return the settings as the boot file has them, with defaults."""
    return boot_of(form, files).speculation.ngram


def _proposer(core: EngineCore) -> NgramProposer:
    proposer = core.context.proposer
    assert proposer is not None
    return proposer
