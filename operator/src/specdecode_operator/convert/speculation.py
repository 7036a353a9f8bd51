"""--speculative-config and the flags of its keys as `spec.speculation`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from specdecode_api.peer_flags import PeerFlag, read_peer_flags
from specdecode_api.peer_values import CONVERSIONS, as_words
from specdecode_api.speculation import MAX_STEPS, Algorithm
from specdecode_api.v1alpha1.runtimes import RuntimeName
from specdecode_operator.convert.model import checkpoint_uri
from specdecode_operator.convert.options import Option, ReadOptions
from specdecode_operator.convert.result import ResourceDraft
from specdecode_operator.convert.secrets import shown
from specdecode_operator.convert.speculation_table import batch_sizes

FLAG: Final = "--speculative-config"
_KEY_OF_FLAG: Final = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
FLAGS: Final = frozenset({FLAG, *_KEY_OF_FLAG})
"""Flags that are read here."""

_EXAMPLE: Final = '{"method": "eagle3", "model": "ORG/NAME", "num_speculative_tokens": 3}'
_STEPS: Final = "num_speculative_tokens"
_TABLE: Final = "num_speculative_tokens_per_batch_size"
_METHODS_OF_KEYS: Final = {
    "prompt_lookup_": ("ngram", "ngram_gpu"),
    "suffix_decoding_": ("suffix",),
}
_LOOKUP: Final = 5
"""vLLM's `prompt_lookup_min` and `prompt_lookup_max` where both are absent."""
_TREE_DEPTH: Final = 24
_CACHED_REQUESTS: Final = "suffix_decoding_max_cached_requests"
_DEFAULT_CACHED_REQUESTS: Final = 10_000


def read_document(options: ReadOptions) -> dict[str, Any]:
    """Unite the JSON object and the flags of its keys; null is as no key.

    Raises:
        ValueError: it is not a JSON object, or has a key twice.
    """
    found = dict[str, Any]()
    for option in options.options:
        for key, value in _entries(option).items():
            if key in found:
                raise ValueError(f"{FLAG}: {key} is given twice: remove one of them")
            found[key] = value
    return {key: value for key, value in found.items() if value is not None}


def _entries(option: Option) -> Mapping[str, Any]:
    if option.flag in _KEY_OF_FLAG:
        word = option.words[0]
        key = _KEY_OF_FLAG[option.flag]
        return {key: _scalar(word) if key == _STEPS else word}
    if option.flag != FLAG:
        return {}
    if option.key:
        return {option.key: _scalar(option.words[0])}
    try:
        document = json.loads(option.words[0], object_pairs_hook=_without_repetition)
    except RecursionError:
        document = None
    except json.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise ValueError(f"{option.name}: write a JSON object, such as {_EXAMPLE}")
    return document


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"{FLAG} has a key twice: remove one of them")
    return dict(pairs)


def _scalar(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


class SpeculationReader:
    """Reads the keys of one document into a draft."""

    def __init__(
        self, draft: ResourceDraft, runtime: RuntimeName, target: str, draft_uri: str | None
    ):
        self._draft, self._runtime = draft, runtime
        self._target, self._draft_uri = target, draft_uri
        self._algorithm = Algorithm.NONE

    def read(self, document: Mapping[str, Any]) -> None:
        """Set `spec.speculation`; keys without a field are listed."""
        rows = read_peer_flags().speculative_config
        if not self._read_method(document):
            return
        for key, value in document.items():
            row = rows.get(key)
            if row is None:
                self._error(f"{FLAG} has no key {shown([key])}: correct or remove it")
            elif not self._is_of_method(key, document["method"]):
                self._error(f"{FLAG} {key} is not for this method: remove it")
            else:
                self._read_key(row, key, value)
        self._read_model(document)
        self._read_ngram(document)
        self._read_steps(document)

    def _read_method(self, document: Mapping[str, Any]) -> bool:
        method = document.get("method")
        if not isinstance(method, str):
            self._error(
                f"{FLAG} has no method, which vLLM finds out from the draft: add it, as in "
                f"{_EXAMPLE}"
            )
            return False
        try:
            settings = CONVERSIONS["spec_method"]("algorithm", [method])
        except ValueError:
            self._error(
                f"{FLAG} method {shown([method])}: no algorithm of a resource drafts so; use "
                "draft_model, eagle, eagle3, mtp, dflash, dspark, ngram or suffix, or remove the "
                "flag"
            )
            return False
        self._algorithm = Algorithm(str(settings["algorithm"]))
        self._set("algorithm", self._algorithm.value, f"{FLAG} method {method}")
        if method == "ngram_gpu":
            self._draft.notes.append(f"{FLAG} method ngram_gpu becomes ngram, on the processor")
        return True

    def _is_of_method(self, key: str, method: str) -> bool:
        for prefix, methods in _METHODS_OF_KEYS.items():
            if key.startswith(prefix):
                return method in methods
        return True

    def _read_key(self, row: PeerFlag, key: str, value: Any) -> None:
        """List a key without a field; the others are read together."""
        is_read = row.conversion is not None or key in ("revision", _TABLE, _CACHED_REQUESTS)
        words = as_words(value)
        if is_read or (len(words) == 1 and words[0] in self._harmless(row)):
            return
        reason = "a draft has no field for it"
        if self._runtime == "Specdecode" and row.remedy is not None:
            reason = row.remedy
        self._draft.drop(f"{FLAG} {key} {shown(words)}", reason)

    def _harmless(self, row: PeerFlag) -> Sequence[str]:
        """Values that ask for nothing; vLLM divides a draft as its target unless a key differs."""
        if self._runtime == "VLLM" and row.flag.endswith("tensor_parallel_size"):
            return (str(self._draft.get("parallelism.tensor", 1)),)
        return row.accepts

    def _read_model(self, document: Mapping[str, Any]) -> None:
        model, revision = document.get("model"), document.get("revision")
        if not self._algorithm.takes_draft or (
            self._algorithm is Algorithm.MTP and model in (None, self._target)
        ):
            if model is not None and model != self._target:
                self._draft.drop(f"{FLAG} model {shown([str(model)])}", "this method has no draft")
            return
        if not isinstance(model, str) and self._draft_uri is None:
            self._error(f"{FLAG} has no model: add the draft, as in {_EXAMPLE}")
            return
        try:
            revision_text = None if revision is None else str(revision)
            uri = checkpoint_uri(str(model), revision_text, self._draft_uri, "--draft-uri")
        except ValueError as error:
            self._error(f"{FLAG} model {error}")
            return
        self._set("draft.uri", uri, f"{FLAG} model {shown([str(model)])}")

    def _read_ngram(self, document: Mapping[str, Any]) -> None:
        if self._algorithm is not Algorithm.NGRAM:
            return
        if document["method"] == "suffix":
            self._read_suffix(document)
            return
        low, high = (document.get(f"prompt_lookup_{end}") for end in ("min", "max"))
        self._set("ngram.source", "Prompt", f"{FLAG} method")
        self._set("ngram.minMatch", _first(low, high, _LOOKUP), f"{FLAG} prompt_lookup_min")
        self._set("ngram.maxDepth", _first(high, low, _LOOKUP), f"{FLAG} prompt_lookup_max")

    def _read_suffix(self, document: Mapping[str, Any]) -> None:
        self._set("ngram.source", "Suffix", f"{FLAG} method")
        depth = document.get("suffix_decoding_max_tree_depth", _TREE_DEPTH)
        self._set("ngram.maxDepth", depth, f"{FLAG} suffix_decoding_max_tree_depth")
        for key, field in (
            ("suffix_decoding_max_spec_factor", "maxSpecFactor"),
            ("suffix_decoding_min_token_prob", "minTokenProbability"),
        ):
            value = document.get(key)
            if value is not None:
                number = float(value) if isinstance(value, int) else value
                self._set(f"ngram.{field}", number, f"{FLAG} {key}")
        cached = document.get(_CACHED_REQUESTS, _DEFAULT_CACHED_REQUESTS)
        if cached == 0:
            return
        if self._runtime == "Specdecode":
            self._draft.notes.append(
                "requests draft from their own texts alone, and with vLLM from those of others "
                "too: speculation.ngram.scope Model does that"
            )
            return
        self._set("ngram.scope", "Model", f"{FLAG} {_CACHED_REQUESTS}")
        if cached != _DEFAULT_CACHED_REQUESTS:
            self._draft.drop(
                f"{FLAG} {_CACHED_REQUESTS} {shown(as_words(cached))}",
                f"scope Model has vLLM's default, {_DEFAULT_CACHED_REQUESTS}",
            )

    def _read_steps(self, document: Mapping[str, Any]) -> None:
        steps = document.get(_STEPS)
        if steps is None and document["method"] == "suffix":
            steps = document.get("suffix_decoding_max_tree_depth", _TREE_DEPTH)
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            self._error(f"{FLAG} {_STEPS}: write a whole number above 0")
            return
        if _TABLE in document and self._has_table(document[_TABLE], steps):
            return
        if steps > MAX_STEPS:
            given = f"{FLAG} {_STEPS} {steps}"
            self._draft.drop(given, f"at most {MAX_STEPS}, which the resource has")
        self._set("numSteps", min(steps, MAX_STEPS), f"{FLAG} {_STEPS}")

    def _has_table(self, table: Any, steps: int) -> bool:
        """Set the table, unless vLLM would ignore it."""
        if self._runtime == "VLLM" and self._draft.get("parallelism.data", 1) > 1:
            self._draft.drop(
                f"{FLAG} {_TABLE}", "vLLM ignores a table with data parallelism; numSteps is set"
            )
            return False
        try:
            entries, notes = batch_sizes(table, min(steps, MAX_STEPS))
        except ValueError as error:
            self._error(f"{FLAG} {_TABLE}: {error}")
            return True
        self._draft.notes += [f"{FLAG} {_TABLE}: {each}" for each in notes]
        self._set("adaptive.policy", "Static", f"{FLAG} {_TABLE}")
        self._set("adaptive.batchSizes", entries, f"{FLAG} {_TABLE}")
        return True

    def _set(self, path: str, value: Any, origin: str) -> None:
        self._draft.set(f"speculation.{path}", value, origin)

    def _error(self, text: str) -> None:
        self._draft.errors.append(text)


def _first(*values: Any) -> Any:
    return next(each for each in values if each is not None)
