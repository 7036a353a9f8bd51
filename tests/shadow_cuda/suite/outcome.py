"""Runs a case on the shadow device, compares it with the CPU, and lists what is wrong."""

import os
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import numpy as np

from checks.lossless.assistant import write_assistant
from checks.lossless.families import LATENT, LLAMA, make_family
from specdecode_engine.engine import EngineCore
from specdecode_kernels.triton.tiles import is_interpreted
from tests.engine.checkpoints import Checkpoints, make_checkpoints
from tests.engine.mtp_checkpoints import LATENT_KEYS, export_module
from tests.engine.whole_engine import Answer
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.flashinfer_module import installed_flashinfer
from tests.shadow_cuda.suite.cases import FLASHINFER_DIM, ShadowCase
from tests.shadow_cuda.suite.engines import (
    ShadowRun,
    StepKind,
    StepRecord,
    build,
    drive,
    largest_difference,
    make_grammar,
    make_requests,
)

KERNELS_VARIABLE = "SPECDECODE_KERNELS"
ROOT = Path(__file__).parents[3]
OWN = str(Path(__file__).parents[1])


@dataclass(slots=True)
class Outcome:
    """What a case showed; `violations` must be empty, each names a place."""

    case: ShadowCase
    attention: str  # that was requested
    violations: list[str] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    logprob_diff: float = 0.0
    compiles_after_start: tuple[str, ...] = ()

    def worst(self, kind: StepKind) -> StepRecord | None:
        """The step of a kind that waited most."""
        steps = [step for step in self.steps if step.kind is kind]
        return max(steps, key=lambda step: step.waits, default=None)

    def max_waits(self, kind: StepKind) -> int:
        worst = self.worst(kind)
        return 0 if worst is None else worst.waits

    def max_launches(self, kind: StepKind) -> int:
        return max((step.launches for step in self.steps if step.kind is kind), default=0)


class Bench:
    """Checkpoints and the CPU's answers, made once each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checkpoints: dict[tuple[int, str], Checkpoints] = {}
        self._answers: dict[tuple[object, ...], dict[str, Answer]] = {}
        self._outcomes: dict[tuple[str, str], Outcome] = {}
        self.grammar = make_grammar()

    def checkpoints(self, case: ShadowCase) -> Checkpoints:
        """Those of the case's head size, with a target of its family."""
        key = case.head_dim, case.family
        if key not in self._checkpoints:
            self._checkpoints[key] = self._make_checkpoints(case)
        return self._checkpoints[key]

    def _make_checkpoints(self, case: ShadowCase) -> Checkpoints:
        folder = self._folder / str(case.head_dim)
        if case.family == LLAMA:
            folder.mkdir()
            return make_checkpoints(folder, case.head_dim)
        llamas = self.checkpoints(replace(case, family=LLAMA))
        target = make_family(case.family, llamas.target, folder / case.family)
        # Its layers are of the target's types.
        assistant = write_assistant(target, folder / f"{case.family}-assistant")
        mtp = llamas.mtp
        if case.family == LATENT:
            mtp = export_module(llamas.target, folder / "latent-mtp", **LATENT_KEYS)
        return replace(llamas, target=target, frozen_kv_mtp=assistant, mtp=mtp)

    def cpu_answers(self, case: ShadowCase) -> dict[str, Answer]:
        """Answers of plain decoding on the CPU by torch: no speculation changes it."""
        key = (case.dtype, case.kv_cache_dtype, case.head_dim, case.family, case.requests)
        if key not in self._answers:
            plain = ShadowCase(
                name="cpu",
                overlap=False,
                dtype=case.dtype,
                kv_cache_dtype=case.kv_cache_dtype,
                family=case.family,
                head_dim=case.head_dim,
                requests=case.requests,
            )
            with mock.patch.dict(os.environ, {KERNELS_VARIABLE: "torch"}):
                core = build(self.checkpoints(case), plain, "cpu")
                ran = drive(core, plain, make_requests(case.requests, self.grammar))
            self._answers[key] = ran.answers
        return self._answers[key]

    def run(self, case: ShadowCase, attention: str, *, logs_launches: bool = False) -> Outcome:
        """Run a case; what it raises is a violation."""
        outcome = Outcome(case, attention)
        wanted = self.cpu_answers(case)
        with ExitStack() as stack:
            gpu = stack.enter_context(shadow_cuda(case.device_bytes))
            if attention == "auto":
                stack.enter_context(installed_flashinfer(gpu))
            gpu.launch_log = [] if logs_launches else None
            try:
                core = self._run_waves(case, outcome, wanted, gpu)
                _check_course(core, outcome, gpu)
            except Exception as error:
                outcome.violations.append(f"{type(error).__name__}: {error} at {place_of(error)}")
            outcome.violations += gpu.errors
        return outcome

    def outcome(self, case: ShadowCase, attention: str) -> Outcome:
        """Run a case without a bug, once."""
        key = case.name, attention
        if key not in self._outcomes:
            self._outcomes[key] = self.run(case, attention)
        return self._outcomes[key]

    def _run_waves(
        self, case: ShadowCase, outcome: Outcome, wanted: dict[str, Answer], gpu: ShadowDevice
    ) -> EngineCore:
        core = build(self.checkpoints(case), case, "cuda", outcome.attention)
        compiled = len(gpu.compiled)
        requests = make_requests(case.requests, self.grammar)
        for wave in range(case.waves):
            while wave and core.idle_step():
                """Capture what the start had no time for."""
            events = case if wave == 0 else _without_events(case)
            ran = drive(core, events, requests, gpu)
            outcome.steps += ran.steps
            _compare(case, ran, wanted, outcome)
        outcome.compiles_after_start = tuple(gpu.compiled[compiled:])
        return core


def _without_events(case: ShadowCase) -> ShadowCase:
    return replace(
        case,
        preempted_at_step=None,
        aborted_at_step=None,
        reloaded_at_step=None,
        unfit_at_step=None,
        exchanged_at_step=None,
        waves=1,
    )


def _compare(case: ShadowCase, ran: ShadowRun, wanted: dict[str, Answer], outcome: Outcome) -> None:
    """Compare tokens and log-probabilities; an aborted request has the first of them."""
    aborted = 0
    for name, expected in wanted.items():
        got = ran.answers[name]
        is_short = len(got.tokens) < len(expected.tokens)
        if is_short and case.aborted_at_step is not None and not aborted:
            aborted += 1
            expected = Answer(
                expected.tokens[: len(got.tokens)], expected.logprobs[: len(got.logprobs)]
            )
        if got.tokens != expected.tokens:
            outcome.violations.append(
                f"request {name}: tokens {got.tokens} instead of {expected.tokens} "
                f"at {Path(__file__).relative_to(ROOT)}"
            )
            continue
        if case.returns_experts and not np.array_equal(
            np.concatenate(got.routed_experts), np.concatenate(expected.routed_experts)
        ):
            outcome.violations.append(
                f"request {name}: other experts at {Path(__file__).relative_to(ROOT)}"
            )
        difference = largest_difference({name: got}, {name: expected})
        outcome.logprob_diff = max(outcome.logprob_diff, difference)


def _check_course(core: EngineCore, outcome: Outcome, gpu: ShadowDevice) -> None:
    """Check that what the case is about did happen."""
    case = outcome.case
    is_flashinfer = outcome.attention == "auto" and case.head_dim == FLASHINFER_DIM
    checks = {
        "attention": core.facts["target_attention"]
        == ("flashinfer" if is_flashinfer else "triton"),
        "compiled kernels": is_interpreted() or len(gpu.compiled) > 0,
        "device": core.facts["device"] == "cuda",
        "overlap": core.facts["overlap"] == case.overlap,
        "events": gpu.event_waits > 0,
        "preemptions": core.scheduler.preempted_total == (case.preempted_at_step is not None),
        "prefix hits": core.scheduler.cache.hit_tokens > 0 or case.waves == 1,
        "replays": (gpu.replays > 0) == (case.graphs == "cuda"),
        "drafts": core.counters.decode.drafted_tokens > 0 or case.algorithm == "NONE",
    }
    outcome.violations += [
        f"{name} of {case.name} differ from what the case describes "
        f"at {Path(__file__).relative_to(ROOT)}"
        for name, is_right in checks.items()
        if not is_right
    ]


def place_of(error: BaseException) -> str:
    """The innermost file and line that belong neither to a package nor to the shadow device."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if frame.filename.startswith(str(ROOT))
        and ".venv" not in frame.filename
        and not frame.filename.startswith(OWN)
    ]
    last = (own or list(frames))[-1]
    return f"{last.filename}:{last.lineno}"
