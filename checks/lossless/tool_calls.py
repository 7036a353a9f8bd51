"""Random tool calls in every format with every speculative algorithm, against plain decoding.

    python -m checks.lossless --tools              three cases of every pair, in both types
    python -m checks.lossless --tools --minutes 10 as many of them as the time permits

Rounds go through all pairs, so that a run that ends early, also by Ctrl-C, has seen every pair of
its whole rounds as often as another.
A case draws tools, the vocabulary's special tokens, requests and an engine; its calls are required.
"""

import argparse
import json
import math
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tqdm import tqdm
from transformers import AutoTokenizer

from checks.lossless.cases import Case, CaseRequest, Material, draw_case
from checks.lossless.comparison import EXAMPLES, differs, make_models
from checks.lossless.families import FAMILIES
from checks.lossless.prompts import load_prompts
from checks.lossless.run import Models, build_plain, build_speculative, run_alone, run_case, tuned
from checks.lossless.tool_grammars import ToolCalls, draw_calls
from specdecode_engine.engine import EngineCore
from specdecode_engine.grammar import TokenBytes
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from specdecode_engine.serve.text.loading import load_text_model

DTYPES = ("float32", "bfloat16")
PER_PAIR = 3
MAX_TOKENS = 160
MAX_REQUESTS = 2
LIKELY = 8.0
"""Added to the logits of what ends calls."""


@dataclass(slots=True)
class ToolTally:
    """What a run has seen, by pair of a format and an algorithm where that matters."""

    cases: Counter[tuple[str, str]] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)  # answers, by format
    requests: int = 0
    drafted: int = 0
    mismatches: int = 0
    invalid: int = 0

    def summary(self, pairs: int, wanted: int) -> dict[str, object]:
        done = self.cases.total()
        return {
            "cases": done,
            "share": round(done / wanted, 3),
            "pairs": len(self.cases),
            "pairs_in_all": pairs,
            "fewest_cases_of_a_pair": min(self.cases.values(), default=0),
            "requests": self.requests,
            "ended_answers": self.ended.total(),
            "fewest_ended_answers_of_a_format": min(self.ended.values(), default=0),
            "drafted_tokens": self.drafted,
            "mismatches": self.mismatches,
            "invalid": self.invalid,
        }


class ToolCases:
    """Cases of one type of weights, and the models that they run on."""

    def __init__(self, dtype: str, seed: int, folder: Path) -> None:
        self.seed = seed
        self._dtype = dtype
        self._folder = folder
        self._models: dict[str, Models] = {}
        self._plain: dict[str, EngineCore] = {}
        self._tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
        self._prompts = load_prompts(EXAMPLES, self._tokenizer)
        eos_ids = self._alone(FAMILIES[0]).eos_token_ids
        self._vocabulary: TokenBytes = load_text_model(EXAMPLES / "target").token_bytes(eos_ids)
        self.algorithms = ("NGRAM", *self._of(FAMILIES[0]).drafts)

    def run(self, number: int, name: str, algorithm: str, tally: ToolTally) -> None:
        """Run a case and count what it shows; print what differs or is not valid."""
        case, calls = self._draw(number, name, algorithm)
        models, alone = self._of(case.family), self._alone(case.family)
        plain = [run_alone(alone, request) for request in case.requests]
        with tuned(case.tuning):
            core = build_speculative(case, models)
            answers = run_case(core, case.requests, case.preempted_at_steps)
        tally.cases[name, algorithm] += 1
        tally.requests += len(answers)
        tally.drafted += core.counters.decode.drafted_tokens
        for request, expected, answer in zip(case.requests, plain, answers, strict=True):
            tally.mismatches += differs(case, request, expected, answer, models, self._tokenizer)
            text = calls.text(answer.token_ids)
            error = None if text is None else calls.error(text)
            tally.ended[name] += text is not None
            if error is not None:
                print(f"case {number}, {name}: {error}\n  {text!r}\n  {case}", file=sys.stderr)
                tally.invalid += 1

    def _draw(self, number: int, name: str, algorithm: str) -> tuple[Case, ToolCalls]:
        """Draw a case of random requests, which all have to call the same tools."""
        material = Material(
            self._prompts, len(self._tokenizer), families=FAMILIES, algorithms=(algorithm,)
        )
        case = draw_case(number, self.seed, material)
        calls = draw_calls(random.Random(f"{self.seed}/{number}/tools"), name, self._vocabulary)
        requests = tuple(_calling(each, calls) for each in case.requests[:MAX_REQUESTS])
        longest = max(len(each.prompt_ids) + MAX_TOKENS for each in requests)
        before = max(len(r.prompt_ids) + r.sampling.max_tokens for r in case.requests)
        spare = case.pool_tokens - before
        case = replace(case, requests=requests, pool_tokens=longest + spare, quantization="auto")
        return (case if case.num_steps else replace(case, num_steps=1, table=())), calls

    def _of(self, family: str) -> Models:
        if family not in self._models:
            options = argparse.Namespace(
                dtype=self._dtype, attention_backend="auto", kv_cache_dtype="auto"
            )
            self._models[family] = make_models(family, self._folder, options)
        return self._models[family]

    def _alone(self, family: str) -> EngineCore:
        if family not in self._plain:
            self._plain[family] = build_plain(self._of(family))
        return self._plain[family]


def _calling(request: CaseRequest, calls: ToolCalls) -> CaseRequest:
    sampling = replace(
        request.sampling,
        max_tokens=MAX_TOKENS,
        min_tokens=0,
        ignore_eos=False,
        stop_token_ids=frozenset(),
        bad_words=(),
        allowed_token_ids=None,
        logit_bias=dict.fromkeys(calls.ends, LIKELY),
    )
    return replace(request, sampling=sampling, grammar=calls.grammar)


def compare_tool_calls(options: argparse.Namespace) -> int:
    """Run the cases; 1 if an answer differs or calls what its tools do not allow."""
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"lossless: tool calls, seed {seed}", file=sys.stderr, flush=True)
    dtypes = DTYPES if options.dtype is None else (options.dtype,)
    tally = {dtype: ToolTally() for dtype in dtypes}
    with tempfile.TemporaryDirectory(prefix="lossless-") as folder:
        suites = [ToolCases(dtype, seed, Path(folder) / dtype) for dtype in dtypes]
        names = sorted(TOOL_FORMATS) if options.formats is None else options.formats
        pairs = [(name, algorithm) for name in names for algorithm in suites[0].algorithms]
        with suppress(KeyboardInterrupt):
            _run_all(pairs, [*zip(suites, tally.values(), strict=True)], options)
    for dtype, seen in tally.items():
        ended = dict(sorted(seen.ended.items()))
        print(json.dumps({"dtype": dtype, "ended_answers_by_format": ended}))
    for dtype, seen in tally.items():
        summary = seen.summary(len(pairs), PER_PAIR * len(pairs))
        print(json.dumps({"seed": seed, "dtype": dtype, **summary}))
    return 1 if any(seen.mismatches or seen.invalid for seen in tally.values()) else 0


def _run_all(
    pairs: Sequence[tuple[str, str]],
    suites: Sequence[tuple[ToolCases, ToolTally]],
    options: argparse.Namespace,
) -> None:
    """Run every pair once a round, or the one case that is wanted, while there is time."""
    until = time.monotonic() + 60 * (options.minutes or math.inf)
    cases = [*enumerate(PER_PAIR * [*pairs])]
    if options.only is not None:
        cases = [cases[options.only]]
    for number, (name, algorithm) in tqdm(cases, desc="cases of each type", file=sys.stderr):
        if time.monotonic() > until:
            return
        for suite, tally in suites:
            suite.run(number, name, algorithm, tally)
