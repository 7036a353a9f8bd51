"""What the zoo knows of a format of drafts: its files, a slow reference, and what it keeps."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from specdecode_api.speculation import MAX_STEPS, Algorithm
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.speculate.block_drafter import BlockDrafter
from specdecode_engine.speculate.chain_drafter import ChainDrafter
from specdecode_engine.speculate.draft_state import DraftKvProgress, HiddenStateRing
from specdecode_engine.speculate.frozen_drafter import FrozenDrafter
from specdecode_engine.speculate.model_drafter import ModelDrafter


@dataclass(frozen=True, slots=True)
class DraftFiles:
    """Folders of a target and of its draft; None: the draft has no folder of its own."""

    target: Path
    draft: Path | None = None


class FormatSettings(Protocol):
    """What engines are started with, whatever a format's drafts come from."""

    @property
    def algorithm(self) -> Algorithm: ...

    @property
    def speculation(self) -> Mapping[str, object]:
        """Further keys of the boot file."""
        ...

    @property
    def num_steps(self) -> int: ...

    @property
    def topks(self) -> tuple[int, ...]: ...

    @property
    def most_steps(self) -> int:
        """Draft steps that the draft can draft at most."""
        ...

    @property
    def least_accept_length(self) -> float:
        """Below, acceptance is too rare to recognise a wrong draft."""
        ...


class SlowDrafter(Protocol):
    """Drafts by recomputing everything, without a cache."""

    def next_logits(self, committed: Items[int], drafted: Items[int]) -> Tensor | None:
        """Score the token after `drafted`, a path of draft tokens after the committed ones.

        Args:
            committed: all tokens of the request; the last is the bonus token, which the target has
                not read yet.

        Returns:
            [vocab] f64 of the target's vocabulary, -inf for tokens that the draft does not know;
            None: nothing is drafted after this path.
        """
        ...


@runtime_checkable
class SlowBlockDrafter(SlowDrafter, Protocol):
    """Drafts in blocks, whose rows may see one another."""

    def shortened(self, num_steps: int) -> SlowDrafter:
        """Return a reference whose blocks have the rows that draft so many tokens."""
        ...


class StateRows(NamedTuple):
    """What a drafter keeps of consecutive positions of a request."""

    first: int  # position of the first row
    rows: Tensor  # [rows, ...]


RequestState = Mapping[str, StateRows]
"""What a drafter keeps of one request, by name."""

RING = "aux hidden states"


def model_drafter_state(core: EngineCore, sequence: Sequence) -> RequestState:
    """Return the draft's computed KV rows, and the aux hidden states that are certainly kept."""
    drafter = core.context.drafter
    assert isinstance(drafter, ModelDrafter)
    return kept_rows(core, sequence, drafter._pool, drafter._progress, drafter._ring)


def block_drafter_state(core: EngineCore, sequence: Sequence) -> RequestState:
    """Return the draft's computed context rows; hidden states are kept for missing ones alone."""
    drafter = core.context.drafter
    assert isinstance(drafter, BlockDrafter)
    return kept_rows(core, sequence, drafter._pool, drafter._progress, None)


def chain_drafter_state(core: EngineCore, sequence: Sequence) -> RequestState:
    """Return the final KV rows of each module, and the aux hidden states."""
    drafter = core.context.drafter
    assert isinstance(drafter, ChainDrafter)
    ring, state = drafter._forward.ring, dict[str, StateRows]()
    for module, progress in enumerate(drafter._progress):
        of_all = kept_rows(core, sequence, drafter._pool, progress, ring)
        for name, (first, rows) in of_all.items():
            is_ring = name == RING
            own = StateRows(first, rows if is_ring else rows[:, module])
            state[name if is_ring else f"{name}, module {module}"] = own
    return state


def frozen_drafter_state(core: EngineCore, sequence: Sequence) -> RequestState:
    """Return the one hidden state that is kept."""
    drafter, req_index = core.context.drafter, sequence.req_index
    assert isinstance(drafter, FrozenDrafter)
    assert req_index is not None
    last = sequence.computed - 1
    rows = drafter._layout.ring.read_span((req_index, last, last + 1))
    return {RING: StateRows(last, rows)}


def kept_rows(
    core: EngineCore,
    sequence: Sequence,
    pool: KVCache,
    progress: DraftKvProgress,
    ring: HiddenStateRing | None,
) -> RequestState:
    """Return computed KV rows of a request, and what a ring certainly has of it."""
    table, req_index = core.context.table, sequence.req_index
    assert req_index is not None
    count = int(progress.first_missing[req_index])
    positions, size = table.offsets(count), table.page_size
    slots = table.pages[req_index, positions // size] * size + positions % size
    state = {
        f"{part} of group {number}": StateRows(0, getattr(group, part)[:, slots].transpose(0, 1))
        for number, group in enumerate(pool.groups)
        for part in ("k", "v")
    }
    if ring is not None:
        first = max(sequence.matched, sequence.computed - ring.kept)
        rows = ring.read_span((req_index, first, sequence.computed))
        state[RING] = StateRows(first, rows)
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFormat:
    """One published format of drafts.

    `write` writes the tiny target and draft of a seed below an existing folder.
    """

    name: str
    algorithm: Algorithm
    write: Callable[[Path, int], DraftFiles]
    reference: Callable[[DraftFiles], SlowDrafter]
    speculation: Mapping[str, object] = field(default_factory=dict)  # further keys of the boot file
    num_steps: int = 3
    topks: tuple[int, ...] = (1, 3)  # that are checked; without 3, chains alone are drafted
    most_steps: int = MAX_STEPS
    is_of_draft: Callable[[str], bool] = lambda _: True  # whether a tensor of the files is checked
    optional: frozenset[str] = frozenset()  # tensors that may be absent
    least_accept_length: float = 1.3  # below, acceptance is too rare to recognise a wrong draft
    state: Callable[[EngineCore, Sequence], RequestState] = model_drafter_state
