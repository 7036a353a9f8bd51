"""The input and output tensors that all graphs share: fixed addresses, filled before each replay.

Rows beyond the batch are padding: they belong to request 0, which has no tokens and whose page is
page 0, so that nothing of a request is written. Letters: B batch, n rows per request.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.shapes import ForwardKind, ForwardShape, ForwardWidths
from specdecode_engine.model.forward import BestTokens, ForwardOutputs
from specdecode_kernels import TORCH, Backend


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """What sizes buffers besides shapes; `dtype` is that of hidden states."""

    widths: Mapping[ForwardKind, ForwardWidths]
    pages: int  # entries of a page table, the same for every forward
    page_size: int
    dtype: torch.dtype
    topk: int = 1  # of drafts

    def num_bytes(self, shapes: Iterable[ForwardShape]) -> int:
        """Bytes of the buffers for these forwards, before they are allocated."""
        return GraphBuffers(self, frozenset(shapes), torch.device("meta")).num_bytes


class GraphBuffers:
    """Inputs and outputs of every forward in `shapes`; without any they are empty."""

    def __init__(
        self,
        spec: BufferSpec,
        shapes: Collection[ForwardShape],
        device: torch.device,
        ops: Backend = TORCH,
    ) -> None:
        self.inputs = InputBuffers(spec, shapes, device)
        self.outputs = OutputBuffers(spec, shapes, device, ops)

    def view(self, shape: ForwardShape, longest: int | None = None) -> DecodeInputs:
        """Return the inputs of a forward; draft steps and modules read the outputs before theirs.

        Args:
            longest: see `InputBuffers.view`.
        """
        inputs = self.inputs.view(shape, longest)
        if shape.kind not in (ForwardKind.DRAFT_STEP, ForwardKind.MODULE):
            return inputs
        return inputs._replace(hidden=self.outputs.recurrent(shape))

    @property
    def num_bytes(self) -> int:
        return self.inputs.num_bytes + self.outputs.num_bytes

    def holds(self, shape: ForwardShape) -> bool:
        """Whether the buffers are large enough for a forward."""
        return self.inputs.holds(shape) and self.outputs.holds(shape)


class InputBuffers:
    """One buffer per input, as large as the largest forward needs it."""

    def __init__(
        self, spec: BufferSpec, shapes: Collection[ForwardShape], device: torch.device
    ) -> None:
        self._longest = spec.pages * spec.page_size
        batch = max((shape.batch_size for shape in shapes), default=0)
        self._req_indices = torch.zeros(batch, dtype=torch.int64, device=device)
        self._verified = torch.zeros(batch, dtype=torch.int64, device=device)
        rows = max((shape.batch_size * shape.rows for shape in shapes), default=0)
        self._tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        trees = [s for s in shapes if s.kind is ForwardKind.DRAFT_STEP and s.seen]
        levels = max((shape.first // shape.rows for shape in trees), default=0)
        parents = max((shape.total_rows for shape in trees), default=0) if levels else 0
        self._parents = torch.zeros(levels, parents, dtype=torch.int64, device=device)
        depths = max(map(_num_depths, shapes), default=0)
        self._depths = torch.zeros(depths, dtype=torch.int64, device=device)
        mask = max(map(_num_masked, shapes), default=0)
        self._mask = torch.zeros(mask, dtype=torch.bool, device=device)
        self._loaded: tuple[Tensor, int] | None = None

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers)

    @property
    def _buffers(self) -> tuple[Tensor, ...]:
        others = self._tokens, self._parents, self._depths, self._mask
        return self._req_indices, self._verified, *others

    def holds(self, shape: ForwardShape) -> bool:
        return (
            shape.batch_size <= self._req_indices.shape[0]
            and shape.batch_size * shape.rows <= self._tokens.shape[0]
            and self._holds_parents(shape)
            and _num_depths(shape) <= self._depths.shape[0]
            and _num_masked(shape) <= self._mask.shape[0]
        )

    def _holds_parents(self, shape: ForwardShape) -> bool:
        levels, rows = self._parents.shape
        return not _num_levels(shape) or (_num_levels(shape) <= levels and shape.total_rows <= rows)

    def view(self, shape: ForwardShape, longest: int | None = None) -> DecodeInputs:
        """Return the buffers as the inputs of a forward, whose batch is not gathered yet.

        Args:
            longest: bound of the lengths, which cuts the page tables; otherwise they have their
                full width, which alone bounds the longest request.
        """
        batch, tokens, depths = shape.batch_size, _num_tokens(shape), _num_depths(shape)
        masked, parents = (
            _num_masked(shape),
            self._parents[: _num_levels(shape), : shape.total_rows],
        )
        return DecodeInputs(
            self._req_indices[:batch],
            self._longest if longest is None else longest,
            shape.rows,
            tokens=self._tokens[:tokens].view(batch, -1) if tokens else None,
            parents=tuple([level.view(batch, -1) for level in parents]),
            depths=self._depths[:depths].view(batch, -1) if depths else None,
            mask=self._mask[:masked].view(batch, shape.rows, -1) if masked else None,
            first=shape.first,
            verified=self._verified[:batch] if shape.verify_tokens else None,
            verify_tokens=shape.verify_tokens,
        )

    def load(self, shape: ForwardShape, inputs: DecodeInputs) -> None:
        """Copy in a batch of at most the shape's size, and pad the rest."""
        own = self.view(shape)
        # The forwards of a step share one batch, copied once.
        if self._loaded is None or self._loaded[0] is not inputs.req_indices:
            self._loaded = (inputs.req_indices, 0)
        if self._loaded[1] < shape.batch_size:
            _fill(own.req_indices, inputs.req_indices)
            self._loaded = (inputs.req_indices, shape.batch_size)
        pairs = (
            (own.tokens, inputs.tokens),
            (own.depths, inputs.depths),
            (own.mask, inputs.mask),
            (own.verified, inputs.verified),
            # Those of the levels before were loaded for the draft steps before.
            *zip(own.parents[-1:], inputs.parents[-1:], strict=True),
        )
        for buffer, values in pairs:
            if buffer is not None:
                assert values is not None
                _fill(buffer, values)

    def clear(self, shape: ForwardShape) -> None:
        """Make every row padding, so that a forward writes to no request's keys and values."""
        for buffer in self._buffers:
            buffer.zero_()
        self._verified[: shape.batch_size].fill_(shape.verify_tokens)
        self._loaded = None


def _num_tokens(shape: ForwardShape) -> int:
    """Drafted tokens that a forward reads: verifying adds the bonus token, others may have none."""
    if shape.kind in (ForwardKind.CATCH_UP, ForwardKind.BLOCK, ForwardKind.MODULE):
        return 0
    if shape.kind.is_of_target:
        return shape.batch_size * (shape.rows - 1)
    return shape.total_rows


def _num_levels(shape: ForwardShape) -> int:
    """Levels of a tree of drafted tokens, the first left out, whose parents a draft step needs."""
    is_draft_step = shape.kind is ForwardKind.DRAFT_STEP
    return shape.first // shape.rows if is_draft_step and shape.seen else 0


def _num_masked(shape: ForwardShape) -> int:
    """Entries of the mask of a tree's nodes; a draft step's follows from the parents."""
    return _num_depths(shape) * shape.seen


def _num_depths(shape: ForwardShape) -> int:
    """Nodes of trees, verified or not."""
    is_tree = shape.seen and shape.kind is ForwardKind.VERIFY
    return shape.batch_size * shape.rows if is_tree else 0


class OutputBuffers:
    """Logits and hidden states of the largest forward of each kind.

    A forward overwrites the outputs of the previous forward of its kind. Separate outputs would
    take the memory of all batch sizes together; the copy into these buffers is part of the graph.
    So is the choice of the best tokens of each row of a draft, where no request samples.
    """

    def __init__(
        self,
        spec: BufferSpec,
        shapes: Collection[ForwardShape],
        device: torch.device,
        ops: Backend,
    ) -> None:
        self._ops = ops
        rows: dict[ForwardKind, int] = {}
        hidden_rows: dict[ForwardKind, int] = {}
        for shape in shapes:
            kind = _output_kind(shape)
            rows[kind] = max(rows.get(kind, 0), shape.output_rows)
            hidden_rows[kind] = max(hidden_rows.get(kind, 0), shape.hidden_rows)
        wide = torch.float64 if spec.dtype == torch.float64 else torch.float32
        self._logits = {
            kind: torch.zeros(count, spec.widths[kind].logits, dtype=wide, device=device)
            for kind, count in rows.items()
        }
        self._hidden = {
            kind: torch.zeros(count, spec.widths[kind].hidden_out, dtype=spec.dtype, device=device)
            for kind, count in hidden_rows.items()
        }
        self._ids = {
            kind: torch.zeros(count, spec.widths[kind].logits, dtype=torch.int64, device=device)
            for kind, count in rows.items()
            if spec.widths[kind].has_ids
        }
        drafting = [shape for shape in shapes if not shape.kind.is_of_target]
        self._topk = spec.topk
        most = max((shape.output_rows for shape in drafting), default=0)
        levels = max(map(self._level, drafting), default=-1) + 1
        # By level of the draft, so that a level does not overwrite the one before.
        self._best = BestTokens(
            torch.zeros(levels, most, self._topk, device=device),
            torch.zeros(levels, most, self._topk, dtype=torch.int64, device=device),
        )

    @property
    def num_bytes(self) -> int:
        buffers = (
            *self._logits.values(),
            *self._hidden.values(),
            *self._ids.values(),
            *self._best,
        )
        return sum(buffer.nbytes for buffer in buffers)

    def holds(self, shape: ForwardShape) -> bool:
        kind = _output_kind(shape)
        logits = self._logits.get(kind)
        if logits is None or shape.output_rows > logits.shape[0]:
            return False
        if shape.hidden_rows > self._hidden[kind].shape[0]:
            return False
        return shape.kind.is_of_target or self._level(shape) < len(self._best.ids)

    def view(self, shape: ForwardShape, batch_size: int) -> ForwardOutputs:
        """Return the outputs of a forward for the first `batch_size` requests."""
        if shape.verify_tokens:
            batch_size = shape.batch_size  # how many rows requests have is not known here
        rows = shape.output_rows // shape.batch_size * batch_size
        best = self._best_of(shape, rows)
        kind = _output_kind(shape)
        hidden_rows = shape.hidden_rows // shape.batch_size * batch_size
        ids = self._ids.get(kind)
        return ForwardOutputs(
            self._logits[kind][:rows],
            self._hidden_of(shape, hidden_rows),
            best,
            None if ids is None else ids[:rows],
        )

    def recurrent(self, shape: ForwardShape) -> Tensor | None:
        """Return the hidden states that a draft step reads: [B, width], later [B * k, width].

        Modules read those of the module before, [B * n, width]; the first one reads none here.
        """
        if shape.first:
            return self._hidden_of(shape, shape.total_rows)
        if shape.kind is ForwardKind.MODULE:
            return None
        hidden = self._hidden.get(ForwardKind.CATCH_UP)
        return None if hidden is None or not hidden.shape[1] else hidden[: shape.batch_size]

    def store(self, shape: ForwardShape, outputs: ForwardOutputs) -> None:
        """Copy in the outputs of a forward, padding included."""
        own = self.view(shape, shape.batch_size)
        own.logits.copy_(outputs.logits)
        if own.hidden is not None:
            assert outputs.hidden is not None
            own.hidden.copy_(outputs.hidden)
        if own.ids is not None:
            assert outputs.ids is not None
            own.ids.copy_(outputs.ids)
        if own.best is not None:
            if outputs.best is not None:
                own.best.ids.copy_(outputs.best.ids)
                return
            if self._topk == 1:
                # Positions count for noise alone, and without parameters nothing is sampled.
                best = self._ops.sample(own.logits.unsqueeze(1), None, own.best.ids, None)
                own.best.ids.copy_(best if own.ids is None else own.ids.gather(1, best))
                return
            scores = torch.log_softmax(own.logits.float(), dim=-1)
            found = BestTokens.of(scores, self._topk, own.ids)
            for buffer, values in zip(own.best, found, strict=True):
                buffer.copy_(values)

    def _best_of(self, shape: ForwardShape, rows: int) -> BestTokens | None:
        if shape.kind.is_of_target:
            return None
        level = self._level(shape)
        return BestTokens(self._best.scores[level, :rows], self._best.ids[level, :rows])

    def _level(self, shape: ForwardShape) -> int:
        """Levels of a draft before the one whose tokens follow from a forward's outputs."""
        if shape.kind is ForwardKind.MODULE:
            return shape.first
        is_draft_step = shape.kind is ForwardKind.DRAFT_STEP
        return 1 + shape.first // shape.rows if is_draft_step else 0

    def _hidden_of(self, shape: ForwardShape, rows: int) -> Tensor | None:
        hidden = self._hidden.get(shape.kind)
        return None if hidden is None or not hidden.shape[1] else hidden[:rows]


def _output_kind(shape: ForwardShape) -> ForwardKind:
    """Return the kind whose outputs a forward overwrites: those of the target share theirs."""
    return ForwardKind.VERIFY if shape.kind.is_of_target else shape.kind


def _fill(buffer: Tensor, values: Tensor) -> None:
    """Copy the values to the front and make the rest zero."""
    count = len(values)
    buffer[:count].copy_(values)
    if count < len(buffer):
        buffer[count:].zero_()
