"""Bugs planted into the product, each of which the shadow device has to catch in a whole engine.

A bug is caught by the violation that names it, or by a step that waits or launches more than the
same step of the engine without the bug.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.batch.verify_rows import VerifyRows
from specdecode_engine.model import forward
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs, TargetForward
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.steps import decode, in_flight
from specdecode_engine.steps.in_flight import InFlightStep
from specdecode_kernels import flashinfer
from tests.shadow_cuda.suite.cases import BY_NAME, LAUNCH_CASES, ShadowCase
from tests.shadow_cuda.suite.engines import StepKind
from tests.shadow_cuda.suite.outcome import Bench, Outcome

Plant = Callable[[], AbstractContextManager[object]]

CHAIN = BY_NAME["by-range"]
SAMPLED = BY_NAME["none-chain-off-sync-sampled"]
EAGER = BY_NAME["eagle3-chain-off-overlap-greedy"]
FLASHINFER = BY_NAME["plain-bf16-eager"]
SMALL_DEVICE = replace(EAGER, name="small device", device_bytes=320 << 20)
LEAKED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug, the engine that has it, and what catches it."""

    name: str
    plant: Plant
    case: ShadowCase
    by: str = ""  # pattern of the violation
    waits: StepKind | None = None  # steps of this kind wait more often
    launches: StepKind | None = None  # steps of this kind launch more
    attention: str = "triton"
    in_unit_tests: bool = False


def caught_by(mutant: Mutant, bench: Bench) -> str:
    """Run a mutant; return what caught it, nothing if nothing did."""
    whole = bench.outcome(mutant.case, mutant.attention)
    with mutant.plant():
        ill = bench.run(mutant.case, mutant.attention)
    return _caught(mutant, whole, ill)


def _caught(mutant: Mutant, whole: Outcome, ill: Outcome) -> str:
    if whole.violations:
        raise AssertionError(f"{mutant.case.name} without a bug: {whole.violations}")
    if mutant.waits is not None:
        before, after = whole.max_waits(mutant.waits), ill.max_waits(mutant.waits)
        return f"{after} waits instead of {before}" if after > before else ""
    if mutant.launches is not None:
        before, after = whole.max_launches(mutant.launches), ill.max_launches(mutant.launches)
        return f"{after} launches instead of {before}" if after > before else ""
    return next((one for one in ill.violations if re.search(mutant.by, one)), "")


def _instead_of(owner: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    """Replace an attribute by what `make` makes of it."""
    return lambda: mock.patch.object(owner, name, make(getattr(owner, name)))


def _after_accept(change: Callable[[Tensor, Tensor], Tensor]) -> Plant:
    """Change the number of accepted tokens [B], given the tokens [B, N]."""

    def make(accept: Any) -> Any:
        def broken(ops: Any, tokens: Tensor, draft: Any) -> Any:
            path, accepted = accept(ops, tokens, draft)
            return path, change(tokens, accepted)

        return broken

    return _instead_of(decode, "accept", make)


def _in_forward(change: Callable[[Tensor], Tensor]) -> Plant:
    """Change the target's logits."""

    def make(call: Any) -> Any:
        def broken(self: TargetForward, inputs: ForwardInputs) -> ForwardOutputs:
            outputs: ForwardOutputs = call(self, inputs)
            return outputs._replace(logits=change(outputs.logits))

        return broken

    return _instead_of(TargetForward, "__call__", make)


def _before(owner: Any, name: str, act: Callable[..., object]) -> Plant:
    """Call `act` with a method's arguments before the method."""

    def make(method: Any) -> Any:
        def broken(*arguments: Any, **named: Any) -> Any:
            act(*arguments, **named)
            return method(*arguments, **named)

        return broken

    return _instead_of(owner, name, make)


def _read(tokens: Tensor, accepted: Tensor) -> Tensor:
    assert int(accepted.sum()) >= 0
    return accepted


def _accept_more(tokens: Tensor, accepted: Tensor) -> Tensor:
    return (accepted + 1).clamp(max=tokens.shape[1] - 1)


def _drafted_on_cpu() -> AbstractContextManager[object]:
    def make(accept: Any) -> Any:
        def broken(ops: Any, tokens: Tensor, draft: Any) -> Any:
            return accept(ops, tokens, replace(draft, tokens=draft.tokens.cpu()))

        return broken

    return _instead_of(decode, "accept", make)()


def _early_event() -> AbstractContextManager[object]:
    """Record the event of a result before its copy."""
    stack = ExitStack()

    def record(self: InFlightStep, *arguments: Any) -> None:
        self._arrival = torch.cuda.Event()
        self._arrival.record()

    stack.enter_context(_before(InFlightStep, "send_tokens", record)())
    stack.enter_context(mock.patch.object(InFlightStep, "_record_arrival", return_value=None))
    return stack


def _shared_results() -> AbstractContextManager[object]:
    """Copy the results of all steps to the same pinned memory."""
    shared: dict[object, Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        key = (tensor.shape, tensor.dtype)
        if key not in shared:
            shared[key] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return shared[key].copy_(tensor, non_blocking=True)

    return mock.patch.object(in_flight, "_start_copy", copy)


def _stale_lengths() -> AbstractContextManager[object]:
    """Let the graphs of each batch size read lengths that were gathered before a capture."""
    kept: dict[int, Tensor] = {}

    def make(gather: Any) -> Any:
        def broken(self: DecodeInputs, table: RequestTable) -> DecodeBatch:
            batch: DecodeBatch = gather(self, table)
            if self.batch is not None:
                return batch
            lengths = kept.setdefault(batch.size, batch.lengths)
            return batch._replace(lengths=lengths)

        return broken

    return _instead_of(DecodeInputs, "gather", make)()


def _shared_intermediates() -> AbstractContextManager[object]:
    """Let the target's graph read what the draft's graph left in the pool that they share."""
    kept: list[Tensor] = []
    stack = ExitStack()

    def make(call: Any) -> Any:
        def broken(*arguments: Any) -> Any:
            outputs = call(*arguments)
            kept[:] = outputs[:1]
            return outputs

        return broken

    def change(logits: Tensor) -> Tensor:
        return logits + kept[0].flatten()[0] * 0 if kept else logits

    stack.enter_context(_instead_of(forward, "forward_committed", make)())
    stack.enter_context(_in_forward(change)())
    return stack


def _reused_staging() -> AbstractContextManager[object]:
    """Stage the numbers of every step in the same memory, without waiting for its last copy."""

    def make(send: Any) -> Any:
        def broken(self: StagingBuffer) -> None:
            send(self)
            if self._segment is not None:
                self._segment._sent = self._segment._end = 0

        return broken

    return _instead_of(StagingBuffer, "send", make)()


def _pageable_plan() -> AbstractContextManager[object]:
    """Plan FlashInfer from pageable memory."""

    def make(stage: Any) -> Any:
        return lambda *arguments: stage(*arguments).clone()

    return _instead_of(flashinfer._Plan, "_stage", make)()


def _stale_plan() -> AbstractContextManager[object]:
    """Run FlashInfer's first plan in every step."""

    def is_for(self: Any, metadata: Any, heads: Any) -> bool:
        return self._made_for is not None and self._made_for[1] == heads

    return mock.patch.object(flashinfer._Plan, "is_for", is_for)


def _leak() -> AbstractContextManager[object]:
    """Keep memory of every forward for ever."""
    kept: list[Tensor] = []

    def change(logits: Tensor) -> Tensor:
        kept.append(torch.empty(LEAKED_BYTES, dtype=torch.uint8, device=logits.device))
        return logits

    return _in_forward(change)()


def _add_from_freed_buffer(logits: Tensor) -> Tensor:
    bias = torch.zeros(logits.shape[-1]).pin_memory()
    return logits + bias.to(logits.device, non_blocking=True)


def _send_pageable(self: Sampler, logits: Tensor, *arguments: Any) -> None:
    torch.tensor([0.5] * len(logits), device=logits.device)


MUTANTS = (
    Mutant(
        "a rejected token is emitted",
        _after_accept(_accept_more),
        CHAIN,
        by="tokens",
        in_unit_tests=True,
    ),
    Mutant(
        "a token that was not verified is accepted",
        _instead_of(VerifyRows, "limit", lambda _: lambda self, draft: draft),
        BY_NAME["verify-rows-sync"],
        by="tokens",
        in_unit_tests=True,
    ),
    Mutant("a steady step reads the device", _after_accept(_read), CHAIN, waits=StepKind.GREEDY),
    Mutant(
        "a tree's step reads the device",
        _after_accept(_read),
        BY_NAME["eagle3-tree-off-sync-greedy"],
        waits=StepKind.TREE,
    ),
    Mutant(
        "a sampled step copies from pageable memory",
        _before(Sampler, "sample", _send_pageable),
        SAMPLED,
        waits=StepKind.SAMPLED,
    ),
    Mutant(
        "a joining request reads the device",
        _before(RequestTable, "open", lambda self, *_: self.pages.sum().item()),
        CHAIN,
        waits=StepKind.JOINING,
        in_unit_tests=True,
    ),
    Mutant(
        "a captured forward reads the device",
        _in_forward(lambda logits: logits * float(logits.sum().item() * 0 + 1)),
        CHAIN,
        by="CaptureRefused",
    ),
    Mutant(
        "a captured forward copies from pageable memory",
        _in_forward(lambda logits: logits + torch.zeros(logits.shape[-1]).to(logits.device)),
        CHAIN,
        by="CaptureRefused",
    ),
    Mutant(
        "a graph copies from pinned memory that was freed",
        _in_forward(_add_from_freed_buffer),
        CHAIN,
        by="HostBufferMisused.*freed",
    ),
    Mutant(
        "an operation has an operand on the CPU",
        _after_accept(lambda tokens, accepted: accepted + torch.zeros(len(tokens)).long()),
        CHAIN,
        by="MixedDevices.*steps/decode|same device.*mutants",
    ),
    Mutant(
        "a kernel has an operand on the CPU",
        _drafted_on_cpu,
        CHAIN,
        by="cannot be accessed from Triton.*verify_chain",
        in_unit_tests=True,
    ),
    Mutant(
        "a result is read before its event",
        lambda: mock.patch.object(InFlightStep, "_record_arrival", return_value=None),
        CHAIN,
        by="tokens|Error",
    ),
    Mutant("an event is recorded before the copy", _early_event, CHAIN, by="tokens|Error"),
    Mutant("two results share pinned memory", _shared_results, CHAIN, by="tokens|Error"),
    Mutant("staged numbers are overwritten", _reused_staging, CHAIN, by="HostBufferMisused"),
    Mutant("a graph reads the lengths of an older step", _stale_lengths, CHAIN, by="tokens"),
    Mutant("a graph reads what another left", _shared_intermediates, CHAIN, by="tokens"),
    Mutant(
        "a step launches one kernel more",
        _after_accept(lambda tokens, accepted: accepted + 0),
        LAUNCH_CASES["launches_eagle3_b1"],
        launches=StepKind.GREEDY,
        in_unit_tests=True,
    ),
    Mutant(
        "FlashInfer is planned from pageable memory",
        _pageable_plan,
        FLASHINFER,
        waits=StepKind.GREEDY,
        attention="auto",
    ),
    Mutant(
        "FlashInfer runs the plan of an older step",
        _stale_plan,
        FLASHINFER,
        by="FlashInferMisused",
        attention="auto",
    ),
    Mutant("memory is never freed", _leak, SMALL_DEVICE, by="tokens|OutOfMemoryError"),
)
