"""Runs drawn cases with the models of every family, and prints mismatches and what was seen."""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from checks.lossless.adapted import FAULTS as ADAPTER_FAULTS
from checks.lossless.adapted import SHARE as ADAPTED_SHARE
from checks.lossless.adapted import (
    AdapterTally,
    material_of,
    plant,
    with_adapters,
    with_fault,
    write_adapters,
)
from checks.lossless.assistant import write_assistant
from checks.lossless.block_drafts import save_dflash, save_dspark, save_peagle
from checks.lossless.cases import MODULES, Case, CaseRequest, Material, draw_case
from checks.lossless.compare import find_difference
from checks.lossless.disturbances import Disturbances
from checks.lossless.families import (
    FAMILIES,
    LATENT,
    LLAMA,
    MIXTURES,
    RECURRENT,
    THROUGH_TRANSFORMERS,
    make_family,
)
from checks.lossless.grammars import Constraints
from checks.lossless.mtp_module import write_mtp_modules
from checks.lossless.prompts import load_prompts
from checks.lossless.published import stored_as
from checks.lossless.resumed import resume_everywhere, resume_some
from checks.lossless.run import (
    Answer,
    Models,
    build_plain,
    build_speculative,
    run_alone,
    run_case,
    tuned,
)
from specdecode_engine.engine import EngineCore
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_engine.stats.counters import DecodeTotals

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "models"
TRANSFORMERS = " through transformers"
"""Ends the name of a family that is computed with transformers' modules."""
ALL = "all"
WHOLE = 300
"""Cases of a run with `--adapters` that must see enough of everything."""


class Tally:
    """What the run has seen."""

    def __init__(self) -> None:
        self.mismatches = 0
        self.invalid = 0  # constrained answers that ended and are not what was demanded
        self.requests = 0
        self.cases = self.drafting_cases = 0
        self.request_steps: Counter[str] = Counter()  # of cases that drafted, by family and draft
        self.emitted: Counter[str] = Counter()
        self.preempted = 0
        self.hit_tokens = 0
        self.graph_steps = 0
        self.mixed_steps = 0
        self.switches = 0
        self.drafted = self.verified = 0
        self.seen: Counter[str] = Counter()
        self.adapted = AdapterTally()
        self.first_mismatch: int | None = None

    def count(self, case: Case, core: EngineCore) -> None:
        """Add one case."""
        self.requests += len(case.requests)
        self.count_drafts(case, core.counters.decode)
        self.preempted += core.scheduler.preempted_total
        for name in (
            "family",
            "algorithm",
            "policy",
            "num_steps",
            "topk",
            "page_size",
            "chunk_tokens",
            "max_running",
            "overlap",
            "prefix_cache",
            "switches_num_steps",
            "draws_verify_rows",
            "graphs",
            "quantization",
            "sum_order",
            "has_fallback",
            "verify_tokens",
        ):
            self.seen[f"{name}={getattr(case, name)}"] += 1
        for name, value in asdict(case.tuning).items():
            self.seen[f"tuning {name}={value}"] += 1
        report = core.context.graphs.report()
        self.switches += sum(core.counters.switches.values())
        self.graph_steps += report.graph_steps
        self.mixed_steps += core.counters.mixed_steps
        for reason, steps in report.eager_steps.items():
            self.seen[f"eager steps: {reason}"] += steps
        self.seen["graphs captured when idle"] += (
            case.graphs == "static" and not case.graph_max_seconds and report.pairs > 0
        )
        if case.has_fallback:
            for source, totals in core.counters.sources.items():
                self.seen[f"draft tokens with a fallback: {source}"] += totals.drafted
        self.seen["preempted by force"] += len(case.preempted_at_steps)
        self.hit_tokens += core.scheduler.cache.hit_tokens
        self.seen["depth changes with batch size"] += bool(case.table)
        for request in case.requests:
            self.seen["requests sampled"] += request.sampling.temperature > 0
            self.seen["requests under a grammar"] += request.grammar is not None
            self.seen["requests with a scored prompt"] += (
                request.sampling.prompt_logprobs is not None
            )
            self.seen["requests for no tokens"] += request.sampling.max_tokens == 0
            self.seen["requests that limit their draft steps"] += request.max_steps is not None
            self.seen["requests aborted"] += request.aborted_at_step is not None

    def count_drafts(self, case: Case, totals: DecodeTotals) -> None:
        """Add what one case drafted."""
        self.cases += 1
        self.drafted += totals.drafted_tokens
        self.verified += totals.verified_tokens
        if totals.drafted_tokens == 0:
            return
        self.drafting_cases += 1
        for name in (ALL, f"family={case.family}", f"algorithm={case.algorithm}"):
            self.request_steps[name] += totals.request_steps
            self.emitted[name] += totals.emitted_tokens

    def counts_of(self, name: str) -> dict[str, int]:
        """Return how many cases had each value of a field."""
        start = f"{name}="
        return {
            seen.removeprefix(start): count
            for seen, count in sorted(self.seen.items())
            if seen.startswith(start)
        }

    def accept_lengths(self) -> dict[str, float]:
        """Tokens for each step of a request, over the cases that drafted."""
        steps = self.request_steps
        return {name: round(self.emitted[name] / steps[name], 3) for name in sorted(steps)}


def compare_all(options: argparse.Namespace, ranks: Ranks = ALONE) -> int:
    """Run the cases with the models of every family; 1 if any differs."""
    with tempfile.TemporaryDirectory(prefix="lossless-") as folder:
        by_family = {name: make_models(name, Path(folder), options) for name in FAMILIES}
        by_family |= {
            f"{name}{TRANSFORMERS}": replace(
                by_family[name], implementation="transformers", adapters={}
            )
            for name in THROUGH_TRANSFORMERS
        }
        if ranks.size > 1:
            by_family = _divided(by_family, ranks)
        return _compare_cases(options, by_family, Path(folder))


def _divided(by_family: dict[str, Models], ranks: Ranks) -> dict[str, Models]:
    """Return the divided models, with drafts that do not read their KV."""
    return {
        name: replace(
            models,
            drafts={key: path for key, path in models.drafts.items() if key != "FROZEN_KV_MTP"},
            ranks=ranks,
            adapters={},
        )
        for name, models in by_family.items()
    }


def make_models(family: str, folder: Path, options: argparse.Namespace) -> Models:
    """The example models, with target and STANDALONE draft as checkpoints of a family."""
    folders = {"STANDALONE": "draft", "EAGLE": "eagle", "EAGLE3": "eagle3"}
    drafts = {algorithm: EXAMPLES / name for algorithm, name in folders.items()}
    target = EXAMPLES / "target"
    if family != LLAMA:
        target = make_family(family, target, folder / family)
        if family not in RECURRENT:
            draft = drafts["STANDALONE"]
            drafts["STANDALONE"] = make_family(family, draft, folder / f"{family}-draft")
    sizes = target if family == LATENT else EXAMPLES / "target"
    drafts["MTP"] = write_mtp_modules(sizes, folder / f"{family}-mtp")
    drafts["MTP_CHAIN"] = write_mtp_modules(sizes, folder / f"{family}-chain", MODULES)
    drafts["DFLASH"] = folder / f"{family}-dflash"
    save_dflash(drafts["DFLASH"], target)
    drafts["FROZEN_KV_MTP"] = write_assistant(target, folder / f"{family}-assistant")
    drafts["DSPARK"] = folder / f"{family}-dspark"
    save_dspark(drafts["DSPARK"], target)
    drafts["PEAGLE"] = folder / f"{family}-peagle"
    save_peagle(drafts["PEAGLE"], drafts["EAGLE3"])
    return Models(
        target,
        drafts,
        options.dtype,
        options.attention_backend,
        options.kv_cache_dtype,
        returns_experts=family in MIXTURES,
        adapters=_adapters(target, folder / f"{family}-adapters", options),
    )


def _adapters(target: Path, folder: Path, options: argparse.Namespace) -> dict[str, str]:
    """Return no adapters where Triton's kernels compute: engines run them on a CPU alone."""
    return {} if options.attention_backend == "triton" else write_adapters(target, folder)


def _compare_cases(options: argparse.Namespace, by_family: dict[str, Models], folder: Path) -> int:
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    plain_cores: dict[tuple[str, str, str], EngineCore] = {}

    def plain_core(family: str, quantization: str, sum_order: str) -> EngineCore:
        key = family, quantization, sum_order
        if key not in plain_cores:
            models = stored_as(by_family[family], quantization, folder)
            plain_cores[key] = build_plain(replace(models, sum_order=sum_order))
        return plain_cores[key]

    constraints = Constraints(EXAMPLES / "target", plain_core(LLAMA, "auto", "auto").eos_token_ids)
    prompts = load_prompts(EXAMPLES, tokenizer)
    material = Material(
        prompts,
        len(tokenizer),
        constraints.grammars,
        constraints.long_grammars,
        tuple(by_family),
        algorithms=("NGRAM", *by_family[LLAMA].drafts),
    )
    adapted = [name for name, models in by_family.items() if models.adapters]
    tally = Tally()
    numbers = range(options.cases) if options.only is None else [options.only]
    for number in tqdm(numbers, desc="cases", file=sys.stderr):
        drawn_from = material_of(number, material, adapted) if options.adapters else material
        case = draw_case(number, options.seed, drawn_from)
        if options.quantization:
            case = replace(case, quantization=options.quantization)
        case = replace(case, sum_order=_sum_order(case, options))
        case = with_adapters(
            case,
            options.seed,
            by_family[case.family].adapters,
            1.0 if options.adapters else ADAPTED_SHARE,
        )
        in_adapters = options.fault if options.fault in ADAPTER_FAULTS else None
        fault = None if in_adapters else options.fault
        models = stored_as(by_family[case.family], case.quantization, folder, fault)
        adapters = with_fault(models.adapters, in_adapters)
        models = replace(models, adapters=adapters, sum_order=case.sum_order)
        alone = plain_core(case.family, case.quantization, case.sum_order)
        plain = [run_alone(alone, request) for request in case.requests]
        requests = resume_some(case, options.seed, plain)
        with tuned(case.tuning):
            core = build_speculative(case, models)
            drafts = models.drafts.get(case.algorithm)
            plant(core, in_adapters)
            disturbances = Disturbances(f"{options.seed}/{number}", core, drafts)

            def before(
                step: int, disturbances: Disturbances = disturbances, core: EngineCore = core
            ) -> None:
                disturbances.before(step)
                tally.adapted.watch(core)

            answers = run_case(core, requests, case.preempted_at_steps, before)
            again = resume_everywhere(case, plain, constraints.long_grammars)
            answers += run_case(core, tuple(request for request, _ in again)) if again else []
        tally.seen += disturbances.seen
        tally.count(case, core)
        if case.adapted:
            _count_adapters(tally.adapted, case, core, requests, answers)
        requests += tuple(request for request, _ in again)
        plain += [answer for _, answer in again]
        tally.seen["requests resumed"] += sum(bool(each.begun) for each in requests)
        tally.seen["requests resumed at every tenth token"] += len(again)
        for request, expected, answer in zip(requests, plain, answers, strict=True):
            if differs(case, request, expected, answer, models, tokenizer):
                tally.mismatches += 1
                tally.first_mismatch = (
                    number if tally.first_mismatch is None else tally.first_mismatch
                )
            tally.invalid += _is_invalid(case, request, answer, constraints, tally.seen)
    is_whole = options.adapters and options.fault is None and len(numbers) >= WHOLE
    missing = tally.adapted.missing(adapted, material.algorithms) if is_whole else []
    if missing:
        print(f"seen too little: {', '.join(missing)}", file=sys.stderr)
    print(json.dumps({"coverage": dict(sorted(tally.seen.items()))}))
    print(json.dumps({"accept_lengths": tally.accept_lengths()}))
    print(json.dumps(_summary(len(numbers), options, tally)))
    return 1 if tally.mismatches or tally.invalid or missing else 0


def _count_adapters(
    tally: AdapterTally,
    case: Case,
    core: EngineCore,
    requests: Sequence[CaseRequest],
    answers: Sequence[Answer],
) -> None:
    pairs = [pair for pair in zip(requests, answers, strict=False) if pair[0].adapter]
    tally.count(case, core, [answer.cached_tokens for _, answer in pairs])
    tally.seen["requests resumed"] += sum(bool(request.begun) for request, _ in pairs)


def _sum_order(case: Case, options: argparse.Namespace) -> str:
    """The order of the case, or that of all; rows of other types than bfloat16 have one alone."""
    if options.dtype != "bfloat16" or options.attention_backend == "triton":
        return "auto"
    return options.sum_order or case.sum_order


def differs(
    case: Case,
    request: CaseRequest,
    plain: Answer,
    answer: Answer,
    models: Models,
    tokenizer: PreTrainedTokenizerBase,
) -> bool:
    is_aborted = request.aborted_at_step is not None and answer.finish_reason == "abort"
    difference = find_difference(
        plain, answer, is_aborted, models.dtype, by_kernels=models.attention_backend == "triton"
    )
    if difference is None and not is_aborted:
        texts = [tokenizer.decode(tokens.token_ids) for tokens in (plain, answer)]
        difference = None if texts[0] == texts[1] else "the texts differ"
    if difference is not None:
        print(f"case {case.number}: {difference}\n  {case}\n  {request}", file=sys.stderr)
    return difference is not None


def _is_invalid(
    case: Case,
    request: CaseRequest,
    answer: Answer,
    constraints: Constraints,
    seen: Counter[str],
) -> bool:
    if request.grammar is None:
        return False
    is_valid = constraints.is_valid(request.grammar, answer.token_ids)
    kind = request.grammar.source.kind
    seen[f"constrained answers that ended: {kind}"] += is_valid is not None
    if is_valid is False:
        print(f"case {case.number}: invalid: {answer.token_ids}\n  {request}", file=sys.stderr)
    return is_valid is False


def _summary(cases: int, options: argparse.Namespace, tally: Tally) -> dict[str, object]:
    return {
        "cases": cases,
        "mismatches": tally.mismatches,
        "first_mismatch": tally.first_mismatch,
        "adapters": tally.adapted.report(),
        "invalid": tally.invalid,
        "seed": options.seed,
        "dtype": options.dtype,
        "attention_backend": options.attention_backend,
        "kv_cache_dtype": options.kv_cache_dtype,
        "quantization": tally.counts_of("quantization"),
        "sum_order": tally.counts_of("sum_order"),
        "fault": options.fault,
        "requests": tally.requests,
        "preempted": tally.preempted,
        "prefix_hit_tokens": tally.hit_tokens,
        "graph_steps": tally.graph_steps,
        "mixed_steps": tally.mixed_steps,
        "switches": tally.switches,
        "verified_share": round(tally.verified / max(tally.drafted, 1), 3),
        "drafting_share": round(tally.drafting_cases / max(tally.cases, 1), 3),
        "accept_length": tally.accept_lengths().get(ALL, 1.0),
    }
