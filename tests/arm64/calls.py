"""Which memory each C kernel touches, computed from its arguments as C's own loops do."""

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from specdecode_kernels.cpu.tuning import IN_C
from specdecode_kernels.packed_weights import BLOCK, SCALES, PackedLayout
from specdecode_kernels.recurrent import RecurrentRule
from specdecode_kernels.weights import is_halved
from tests.arm64.image import Link, Span, Touched

TUNING_FIELDS = len(IN_C)  # of `struct tuning`
WEIGHT_FIELDS = 8  # of `struct weight`
_WORD = 8  # bytes of an index and of a pointer
_DELTA_NUMBERS = 8  # of 32 bits, for each row of a tree: ROW_NUMBERS of gated_delta.c


@dataclass(frozen=True, slots=True)
class Entries:
    """Spans of tensors whose entries have `size` bytes."""

    size: int

    def span(self, address: int, count: int, *, is_written: bool = False) -> Span:
        """`count` entries from an address on."""
        return Span(address, address + count * self.size, is_written)

    def rows(
        self, address: int, count: int, stride: int, width: int, *, is_written: bool = False
    ) -> Span:
        """`count` rows of `width` entries, `stride` entries apart; includes what lies between."""
        entries = (count - 1) * stride + width if count else 0
        return self.span(address, entries, is_written=is_written)


Spans = Callable[..., Touched]

_FLOATS, _INDICES = Entries(4), Entries(_WORD)


def rms_norm(
    of: Entries, x: int, stride: int, weight: int, is_wide: int, _eps: float, out: int, rows: int,
    dim: int,
) -> Touched:  # fmt: skip
    given = [of.rows(x, rows, stride, dim), (_FLOATS if is_wide else of).span(weight, dim)]
    return Touched([*given, of.span(out, rows * dim, is_written=True)])


def add_rms_norm(
    of: Entries, x: int, stride: int, update: int, update_stride: int, weight: int, is_wide: int,
    _eps: float, summed: int, normed: int, rows: int, dim: int,
) -> Touched:  # fmt: skip
    given = [of.rows(x, rows, stride, dim), of.rows(update, rows, update_stride, dim)]
    results = [of.span(each, rows * dim, is_written=True) for each in (summed, normed)]
    return Touched([*given, (_FLOATS if is_wide else of).span(weight, dim), *results])


def apply_rope(
    of: Entries, q: int, q_stride: int, q_heads: int, k: int, k_stride: int, k_heads: int,
    cos: int, sin: int, rows: int, dim: int,
) -> Touched:  # fmt: skip
    angles = [_FLOATS.span(each, rows * (dim // 2)) for each in (cos, sin)]
    turned = [
        of.rows(q, rows, q_stride, q_heads * dim, is_written=True),
        of.rows(k, rows, k_stride, k_heads * dim, is_written=True),
    ]
    return Touched([*angles, *turned])


def silu_and_mul(
    of: Entries, gate: int, gate_stride: int, up: int, up_stride: int, out: int, rows: int, dim: int
) -> Touched:
    given = [of.rows(gate, rows, gate_stride, dim), of.rows(up, rows, up_stride, dim)]
    return Touched([*given, of.span(out, rows * dim, is_written=True)])


def softcap(_: Entries, x: int, _cap: float, out: int, count: int) -> Touched:
    return Touched([_FLOATS.span(x, count), _FLOATS.span(out, count, is_written=True)])


def store_kv(
    of: Entries, k_pool: int, v_pool: int, slots: int, k: int, k_stride: int, v: int, v_stride: int,
    count: int, k_width: int, v_width: int,
) -> Touched:  # fmt: skip
    end = max(_integers(slots, count), default=-1) + 1
    widths = ((k_pool, k_width), (v_pool, v_width))
    pools = [of.span(pool, end * width, is_written=True) for pool, width in widths]
    given = [of.rows(k, count, k_stride, k_width), of.rows(v, count, v_stride, v_width)]
    return Touched([*pools, *given, _INDICES.span(slots, count)])


def verify_chain(
    _: Entries, choices: int, stride: int, drafted: int, drafted_stride: int, accepted: int,
    batch: int, count: int,
) -> Touched:  # fmt: skip
    rows = batch if count else 0
    given = [(choices, stride), (drafted, drafted_stride)]
    counts = _INDICES.span(accepted, batch, is_written=True)
    return Touched([counts, *(_INDICES.rows(at, rows, each, count) for at, each in given)])


def append_tokens(
    _: Entries, sequences: int, width: int, lengths: int, req_indices: int, starts: int,
    offsets: int, tokens: int, stride: int, accepted: int, batch: int, count: int,
) -> Touched:  # fmt: skip
    requests = max(_integers(req_indices, batch), default=-1) + 1
    given = [_INDICES.span(each, batch) for each in (req_indices, starts, accepted)]
    given += [_INDICES.span(offsets, count), _INDICES.rows(tokens, batch, stride, count)]
    written = ((sequences, requests * width), (lengths, requests))
    return Touched([*given, *(_INDICES.span(at, n, is_written=True) for at, n in written)])


def lay_out_rows(
    _: Entries, pages: int, stride: int, _page_size: int, req_indices: int, lengths: int,
    _start: int, offsets: int | None, lowest: int | None, rows: int, batch: int, count: int,
    page_table: int, columns: int,
) -> Touched:  # fmt: skip
    requests = max(_integers(req_indices, batch), default=-1) + 1
    given = [
        *(_INDICES.span(each, batch) for each in (req_indices, lengths)),
        _INDICES.span(pages, requests * stride),
        *([_INDICES.span(offsets, count)] if offsets else []),
        *([_INDICES.span(lowest, requests)] if lowest else []),
    ]
    written = ((rows, 4 * batch * count), (page_table, batch * columns))
    return Touched([*given, *(_INDICES.span(at, n, is_written=True) for at, n in written)])


def pack(of: Entries, to: int, weight: int) -> Touched:
    packed = _Weight.read(to)
    plain = of.span(weight, packed.outputs * packed.inputs)
    return Touched([plain, *packed.spans(to, is_written=True)], packed.links(to))


def pack_quantized(
    _: Entries, to: int, values: int, scales: int, zeros: int | None, factors: int | None
) -> Touched:
    packed = _Weight.read(to)
    layout, outputs, inputs = packed.layout, packed.outputs, packed.inputs
    width = -(-inputs // 2) if layout.numbers and is_halved(layout.numbers) else inputs
    groups = layout.padded(inputs) // layout.group if layout.group else 1
    itemsize = SCALES[layout.scales].itemsize  # of blocks; scales in bfloat16 are given as floats
    given = [
        Span(values, values + outputs * width),
        Span(scales, scales + outputs * groups * (4 if itemsize == 2 else itemsize)),
        *([_FLOATS.span(factors, outputs)] if factors else []),
        *([Span(zeros, zeros + outputs * groups)] if zeros else []),
    ]
    return Touched([*given, *packed.spans(to, is_written=True)], packed.links(to))


def linear(
    of: Entries, weight: int, bias: int | None, x: int, stride: int, out: int, rows: int
) -> Touched:
    packed = _Weight.read(weight)
    result = of.span(out, rows * packed.outputs, is_written=True)
    added = [of.span(bias, packed.outputs)] if bias else []
    given = [*packed.spans(weight), of.rows(x, rows, stride, packed.inputs)]
    return Touched([*given, result, *added], packed.links(weight))


def map_heads(
    of: Entries, weight: int, heads: int, x: int, stride: int, head_stride: int, out: int, rows: int
) -> Touched:
    packed = _Weight.read(weight)
    result = of.span(out, rows * heads * packed.outputs, is_written=True)
    width = (heads - 1) * head_stride + packed.inputs
    given = [*packed.spans(weight, experts=heads), of.rows(x, rows, stride, width)]
    return Touched([*given, result], packed.links(weight))


def set_tuning(_: Entries, values: int) -> Touched:
    return Touched([_INDICES.span(values, TUNING_FIELDS)])


def experts(
    of: Entries, gate_up: int, gate_up_bias: int | None, down: int, down_bias: int | None, x: int,
    stride: int, ids: int, factors: int, out: int, scratch: int, order: int, sizes: int, gate: int,
) -> Touched:  # fmt: skip
    rows, top_k, count, width, inner, _kind = _integers(sizes, 6)
    pairs = rows * top_k
    packed = {gate_up: _Weight.read(gate_up), down: _Weight.read(down)}
    weights = [
        *(span for at, one in packed.items() for span in one.spans(at, experts=count)),
        *([of.span(gate_up_bias, count * 2 * inner)] if gate_up_bias else []),
        *([of.span(down_bias, count * width)] if down_bias else []),
    ]
    written = [
        of.span(out, rows * width, is_written=True),
        of.span(scratch, pairs * (width + 2 * inner), is_written=True),
        _INDICES.span(order, count + 1 + 5 * pairs, is_written=True),
    ]
    given = [of.rows(x, rows, stride, width), *(_FLOATS.span(at, pairs) for at in (ids, factors))]
    settings = [_INDICES.span(sizes, 6), _FLOATS.span(gate, 2)]
    links = [link for at, one in packed.items() for link in one.links(at)]
    return Touched([*weights, *written, *given, *settings], links)


def attend(
    of: Entries, metadata: int, tree_kv: int | None, q: int, q_stride: int, k_pool: int,
    v_pool: int, out: int, q_heads: int, kv_heads: int, k_dim: int, v_dim: int, params: int,
) -> Touched:  # fmt: skip
    layout = _Layout.read(metadata)
    window, chunk, sinks = _integers(params, 3)
    pool_rows = layout.pool_rows(window, chunk)
    widths = (kv_heads * k_dim, kv_heads * v_dim)
    spans = [
        *layout.spans(metadata),
        of.rows(q, layout.rows, q_stride, q_heads * k_dim),
        of.span(out, layout.rows * q_heads * v_dim, is_written=True),
        *(
            of.span(pool, pool_rows * each)
            for pool, each in zip((k_pool, v_pool), widths, strict=True)
        ),
        Span(params, params + 4 * _WORD),
        *([Span(sinks, sinks + 4 * q_heads)] if sinks else []),
    ]
    links = [*layout.links(metadata), *([Link(params + 2 * _WORD, sinks)] if sinks else [])]
    if tree_kv:
        tree = _tree(of, tree_kv, layout, widths)
        spans, links = [*spans, *tree.spans], [*links, *tree.links]
    return Touched(spans, links)


def gated_delta(
    of: Entries, params: int, state: int, rows: int, _layer: int, inputs: int, out: int,
    workspace: int | None,
) -> Touched:  # fmt: skip
    batch, _chunks, batch_stride, node_stride, *tables = _integers(rows, 7)
    u, gates, stride, gates_stride = _integers(inputs, 4)
    slots, starts, ancestry = tables
    begins, (layers, state_spans) = _integers(starts, batch + 1), _delta(of, params, state)
    count, nodes = begins[-1], max((b - a for a, b in itertools.pairwise(begins)), default=0)
    marks = (batch - 1) * batch_stride + max(nodes - 1, 0) * node_stride + nodes
    width = layers.v_heads * layers.v_dim
    spans = [
        *state_spans,
        *(Span(at, at + fields * _WORD) for at, fields in ((rows, 7), (inputs, 4))),
        _INDICES.span(slots, count),
        _INDICES.span(starts, batch + 1),
        *([Span(ancestry, ancestry + marks)] if ancestry else []),
        of.rows(u, count, stride, layers.channels),
        of.rows(gates, count, gates_stride, layers.gates),
        of.span(out, count * width, is_written=True),
        *([_FLOATS.span(workspace, count * _DELTA_NUMBERS, is_written=True)] if workspace else []),
    ]
    links = [
        *layers.links(params, state),
        *(Link(rows + at * _WORD, target) for at, target in enumerate(tables, 4) if target),
        *(Link(inputs + at * _WORD, target) for at, target in enumerate((u, gates))),
    ]
    return Touched(spans, links)


def keep_drafted(
    of: Entries, params: int, state: int, slots: int, path: int | None, stride: int, accepted: int,
    batch: int,
) -> Touched:  # fmt: skip
    layers, spans = _delta(of, params, state)
    most = max(_integers(accepted, batch), default=0)
    given = [_INDICES.span(each, batch) for each in (slots, accepted)]
    given += [_INDICES.rows(path, batch, stride, most + 1)] if path else []
    return Touched([*spans, *given], layers.links(params, state))


CALLS: dict[str, Spans] = {
    **{call.__name__: call for call in (rms_norm, add_rms_norm, apply_rope, silu_and_mul)},
    **{call.__name__: call for call in (store_kv, pack, linear, attend, experts)},
    "gelu_tanh_and_mul": silu_and_mul,
    "softcap": softcap,
    "set_tuning": set_tuning,
    "pack_quantized": pack_quantized,
    "verify_chain": verify_chain,
    "lay_out_rows": lay_out_rows,
    "append_tokens": append_tokens,
    "map_heads": map_heads,
    "gated_delta": gated_delta,
    "keep_drafted": keep_drafted,
}
"""By the kernel's name; the order gives the numbers by which driver.c knows them."""


@dataclass(frozen=True, slots=True)
class _Weight:
    """`struct weight` of linear.h."""

    layout: PackedLayout
    blocks: int
    outputs: int
    inputs: int
    order: int  # 0: none

    @staticmethod
    def read(address: int) -> "_Weight":
        form, group, scales, both, *rest = _integers(address, WEIGHT_FIELDS)
        has_zeros, sums = bool(both & 0xFFFFFFFF), both >> 32  # two words of 32 bits
        return _Weight(PackedLayout(form, group, scales, has_zeros, sums), *rest)

    def spans(self, address: int, *, experts: int = 1, is_written: bool = False) -> list[Span]:
        """Return those of the record at an address, and of the blocks."""
        size = experts * -(-self.outputs // BLOCK) * self.layout.block_bytes(self.inputs)
        blocks = Span(self.blocks, self.blocks + size, is_written)
        order = [Span(self.order, self.order + 4 * self.inputs)] if self.order else []
        return [Span(address, address + WEIGHT_FIELDS * _WORD), blocks, *order]

    def links(self, address: int) -> list[Link]:
        order = [Link(address + 7 * _WORD, self.order)] if self.order else []
        return [Link(address + 4 * _WORD, self.blocks), *order]


@dataclass(frozen=True, slots=True)
class _DeltaLayers:
    """`struct delta_params` and `struct delta_state` of gated_delta.h."""

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    conv_width: int
    rule: int
    layers: int
    params: tuple[int, ...]  # addresses, as are those below
    state: tuple[int, ...]

    @property
    def channels(self) -> int:
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim

    @property
    def gates(self) -> int:
        """Numbers of one token's gates."""
        return 0 if self.rule == RecurrentRule.CONVOLUTION else 2 * self.v_heads

    def links(self, params: int, state: int) -> list[Link]:
        return [
            *(
                Link(params + at * _WORD, target)
                for at, target in enumerate(self.params, 7)
                if target
            ),
            *(Link(state + at * _WORD, target) for at, target in enumerate(self.state, 3)),
        ]


def _delta(of: Entries, params: int, state: int) -> tuple[_DeltaLayers, list[Span]]:
    """Read parameters and states of all layers, and their spans."""
    *sizes, conv, decay, dt_bias, conv_bias = _integers(params, 11)
    slots, drafted_slots, nodes, inputs, matrices, drafted, gates = _integers(state, 7)
    k_heads, v_heads, k_dim, v_dim, conv_width, rule, layers = sizes
    found = _DeltaLayers(
        *(k_heads, v_heads, k_dim, v_dim, conv_width, rule, layers),
        (conv, decay, dt_bias, conv_bias),
        (inputs, matrices, drafted, gates),
    )
    states, drafts = layers * slots, layers * drafted_slots * nodes
    channels, heads = found.channels, found.v_heads
    return found, [
        Span(params, params + 11 * _WORD),
        Span(state, state + 7 * _WORD),
        _FLOATS.span(conv, layers * found.conv_width * channels),
        *(_FLOATS.span(each, layers * heads) for each in (decay, dt_bias)),
        *([_FLOATS.span(conv_bias, layers * channels)] if conv_bias else []),
        of.span(inputs, states * (found.conv_width - 1) * channels, is_written=True),
        _FLOATS.span(matrices, states * heads * found.k_dim * found.v_dim, is_written=True),
        of.span(drafted, drafts * channels, is_written=True),
        of.span(gates, drafts * found.gates, is_written=True),
    ]


@dataclass(frozen=True, slots=True)
class _Layout:
    """`struct metadata` of attend.c."""

    pages: int
    starts: int
    kv_lens: int
    batch: int
    page_columns: int
    page_size: int

    @staticmethod
    def read(address: int) -> "_Layout":
        return _Layout(*_integers(address, 6))

    @property
    def rows(self) -> int:
        return _integers(self.starts, self.batch + 1)[-1]

    def columns(self) -> list[int]:
        """Count the pages that each request reads."""
        starts = _integers(self.starts, self.batch + 1)
        lengths = _integers(self.kv_lens, self.rows)
        longest = [max(lengths[a:b], default=0) for a, b in itertools.pairwise(starts)]
        return [-(-length // self.page_size) for length in longest]

    def most_queries(self) -> int:
        starts = _integers(self.starts, self.batch + 1)
        return max((b - a for a, b in itertools.pairwise(starts)), default=0)

    def first_columns(self, window: int, chunk: int) -> list[int]:
        """Count the pages before the windows or chunks of each request's rows; 0: none."""
        starts = _integers(self.starts, self.batch + 1)
        lengths = _integers(self.kv_lens, self.rows)
        shortest = [min(lengths[a:b], default=0) for a, b in itertools.pairwise(starts)]
        if chunk:
            return [max(0, n - 1) // chunk * chunk // self.page_size for n in shortest]
        return [max(0, n - window) // self.page_size if window else 0 for n in shortest]

    def pool_rows(self, window: int, chunk: int) -> int:
        """Rows of the pool up to the end of the last page that is read."""
        ends = [0]
        columns = zip(self.first_columns(window, chunk), self.columns(), strict=True)
        for request, (first, end) in enumerate(columns):
            pages = _integers(self.pages + request * self.page_columns * _WORD, end)
            ends += [(page + 1) * self.page_size for page in pages[first:]]
        return max(ends)

    def spans(self, address: int) -> list[Span]:
        read = [at * self.page_columns + columns for at, columns in enumerate(self.columns())]
        return [
            Span(address, address + 7 * _WORD),
            _INDICES.span(self.pages, max(read, default=0)),
            _INDICES.span(self.starts, self.batch + 1),
            _INDICES.span(self.kv_lens, self.rows),
        ]

    def links(self, address: int) -> list[Link]:
        targets = (self.pages, self.starts, self.kv_lens)
        return [Link(address + at * _WORD, target) for at, target in enumerate(targets)]


def _tree(of: Entries, address: int, layout: _Layout, widths: tuple[int, int]) -> Touched:
    """`struct tree_kv` of attend.c, and what it points to."""
    k, v, mask, count, *strides, of_batch, of_query = _integers(address, 10)
    requests, rows = layout.batch - 1, count - 1
    k_entries = requests * strides[0] + rows * strides[1] + widths[0]
    v_entries = requests * strides[2] + rows * strides[3] + widths[1]
    masked = requests * of_batch + (layout.most_queries() - 1) * of_query + count
    spans = [
        Span(address, address + 10 * _WORD),
        of.span(k, k_entries if count else 0),
        of.span(v, v_entries if count else 0),
        Span(mask, mask + (masked if count else 0)),
    ]
    links = [Link(address + at * _WORD, target) for at, target in enumerate((k, v, mask))]
    return Touched(spans, links if count else [])


def _integers(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address)) if count else []
