"""FlashInfer's backend on the shadow device: its plans wait for nothing and bound true lengths."""

import ast
import inspect
import random
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode_kernels import (
    DEFAULT_ATTENTION,
    TORCH,
    AttentionMetadata,
    AttentionParams,
    Backend,
    CausalBounds,
    KvScale,
    LayerKV,
    TreeKV,
)
from specdecode_kernels import flashinfer as backend
from specdecode_kernels.flashinfer import MAX_GROUP, PLANS, with_flashinfer
from tests.shadow_cuda import flashinfer_module
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.errors import HostBufferMisused
from tests.shadow_cuda.flashinfer_module import (
    VERSION,
    BatchPrefillWithPagedKVCacheWrapper,
    FlashInferMisused,
    installed_flashinfer,
)

DTYPE, DIM, PAGE = torch.bfloat16, 64, 4
GPU = torch.device("cuda")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu() -> Iterator[ShadowDevice]:
    with shadow_cuda() as device:
        yield device


@pytest.fixture
def flashinfer(gpu: ShadowDevice) -> Iterator[Any]:
    with installed_flashinfer(gpu) as module:
        yield module.BatchPrefillWithPagedKVCacheWrapper


@pytest.fixture
def ops(flashinfer: ModuleType) -> Backend:
    """FlashInfer, and no other attention in its place."""
    made = with_flashinfer(replace(TORCH, attend=refuse), GPU, DTYPE, DIM, DTYPE)
    assert made.attention == "flashinfer"
    return made


def refuse(*_: object) -> Tensor:
    raise AssertionError("the other backend was called")


class Case:
    """Causal rows of several requests on the CPU, and the same on the shadow device.

    Args:
        qo_lens: query rows of each request.
        slack: by how much a bound may exceed the length.
    """

    def __init__(self, qo_lens: tuple[int, ...], slack: int, seed: int = 0, group: int = 2) -> None:
        chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        batch, width = len(qo_lens), 6
        most = width * PAGE
        lens = [chance.randint(count, most - slack) for count in qo_lens]
        bounds = tuple(length + chance.randint(0, slack) for length in lens)
        table = torch.tensor(chance.sample(range(1, 1 + batch * width), batch * width))
        kv_lens = [
            length - before
            for length, count in zip(lens, qo_lens, strict=True)
            for before in range(count - 1, -1, -1)
        ]
        inexact = max(qo_lens) if slack else 0
        self.metadata = AttentionMetadata(
            table.view(batch, width),
            PAGE,
            qo_lens,
            torch.tensor(kv_lens),
            most,
            causal_bounds=CausalBounds(bounds, inexact),
        )
        rows = (1 + batch * width) * PAGE
        k, v = (torch.randn(rows, 2, DIM, generator=generator).to(DTYPE) for _ in range(2))
        self.kv = LayerKV(k, v)
        self.q = torch.randn(sum(qo_lens), 2 * group, DIM, generator=generator).to(DTYPE)

    def on_device(self) -> tuple[Tensor, LayerKV, AttentionMetadata]:
        metadata = replace(
            self.metadata,
            page_table=self.metadata.page_table.to(GPU),
            kv_lens=self.metadata.kv_lens.to(GPU),
        )
        kv = replace(self.kv, k=self.kv.k.to(GPU), v=self.kv.v.to(GPU))
        return self.q.to(GPU), kv, metadata

    def wanted(self, params: AttentionParams = DEFAULT_ATTENTION) -> Tensor:
        return TORCH.attend(self.q, self.kv, self.metadata, None, params)


CASES = {
    "prefill": ((5, 1, 9), 0),
    "one prompt": ((7,), 0),
    "decode": ((1, 1, 1), 0),
    "decode under bounds": ((1, 1, 1, 1), 6),
    "chains of known length": ((3, 3), 0),
}


@pytest.mark.parametrize(("qo_lens", "slack"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("seed", range(3))
def test_it_attends_to_true_lengths_without_a_wait(
    gpu: ShadowDevice, ops: Backend, qo_lens: tuple[int, ...], slack: int, seed: int
) -> None:
    case = Case(qo_lens, slack, seed)
    q, kv, metadata = case.on_device()
    with gpu.counting() as waits:
        out = ops.attend(q, kv, metadata, None)
    assert not waits
    assert torch.equal(out.cpu(), case.wanted())


def test_prefill_and_decode_rows_under_bounds_share_a_plan(gpu: ShadowDevice, ops: Backend) -> None:
    case = Case((6, 1, 1), 0)
    bounds = case.metadata.causal_bounds
    assert bounds is not None
    prompt, *decoding = bounds.kv_lens
    looser = CausalBounds((prompt, *(min(one + 5, 24) for one in decoding)), inexact_rows=1)
    case.metadata = replace(case.metadata, causal_bounds=looser)
    out = ops.attend(*case.on_device(), None)
    assert torch.equal(out.cpu(), case.wanted())


PARAMS = {
    "scale": AttentionParams(scale=0.5),
    "softcap": AttentionParams(logit_softcap=2.0),
    "window": AttentionParams(sliding_window=3),
    "all": AttentionParams(scale=0.3, logit_softcap=4.0, sliding_window=5),
}


@pytest.mark.parametrize(("qo_lens", "slack"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("name", PARAMS)
def test_params_are_part_of_the_plan(
    gpu: ShadowDevice, ops: Backend, qo_lens: tuple[int, ...], slack: int, name: str
) -> None:
    case = Case(qo_lens, slack)
    out = ops.attend(*case.on_device(), None, PARAMS[name])
    assert torch.equal(out.cpu(), case.wanted(PARAMS[name]))


def test_layers_with_and_without_a_window_have_a_plan_each(flashinfer: Any, ops: Backend) -> None:
    case = Case((1, 1), 2)
    args, plans = case.on_device(), flashinfer.plans
    for _ in range(3):
        for params in (DEFAULT_ATTENTION, PARAMS["window"]):
            out = ops.attend(*args, None, params)
            assert torch.equal(out.cpu(), case.wanted(params))
    assert flashinfer.plans - plans == 2


def test_one_plan_serves_all_layers_and_another_model_gets_its_own(
    flashinfer: Any, ops: Backend
) -> None:
    case = Case((1, 1), 2)
    q, kv, metadata = case.on_device()
    wide = torch.cat([q, q], dim=1)
    plans, runs = flashinfer.plans, flashinfer.runs
    for _ in range(3):
        ops.attend(q, kv, metadata, None)
        ops.attend(wide, kv, metadata, None)
    assert (flashinfer.plans - plans, flashinfer.runs - runs) == (2, 6)


OTHERS = (
    "no bounds",
    "tree",
    "group",
    "chains under bounds",
    "no rows",
    "sinks",
    "chunks",
    "narrow values",
)


@pytest.mark.parametrize("case", OTHERS)
def test_the_other_backend_serves_what_no_plan_can(
    gpu: ShadowDevice, flashinfer: Any, case
) -> None:
    called: list[object] = []

    def attend(*args: Any) -> Tensor:
        called.append(args)
        return TORCH.attend(*args)

    ops = with_flashinfer(replace(TORCH, attend=attend), GPU, DTYPE, DIM, DTYPE)
    qo_lens = (2, 2) if case == "chains under bounds" else (1, 1)
    made = Case(qo_lens, 3, group=MAX_GROUP + 1 if case == "group" else 2)
    q, kv, metadata = made.on_device()
    tree = None
    if case == "no bounds":
        metadata = replace(metadata, causal_bounds=None)
    if case == "tree":
        nodes = kv.k[:2].view(2, 1, 2, DIM)
        tree = TreeKV(nodes, nodes, torch.ones(2, 1, 1, dtype=torch.bool, device=GPU))
    if case == "no rows":
        empty = metadata.page_table[:0]
        metadata = AttentionMetadata(
            empty, PAGE, (), metadata.kv_lens[:0], 24, causal_bounds=CausalBounds(())
        )
        q = q[:0]
    params = DEFAULT_ATTENTION
    if case == "sinks":
        params = AttentionParams(sinks=torch.ones(q.shape[1], device=GPU))
    if case == "chunks":
        params = AttentionParams(attention_chunk_size=16)
    if case == "narrow values":
        kv = replace(kv, v=kv.v[..., : DIM // 2])
    ops.attend(q, kv, metadata, tree, params)
    assert len(called) == 1


def test_chains_under_bounds_are_served_where_nothing_is_split(
    gpu: ShadowDevice, ops: Backend
) -> None:
    processors = torch.cuda.get_device_properties(GPU).multi_processor_count
    case = Case((2,) * processors, 3)  # 2 KV heads each: two programs per processor
    out = ops.attend(*case.on_device(), None)
    assert torch.equal(out.cpu(), case.wanted())


def test_float8_entries_are_read_times_their_scales(gpu: ShadowDevice, flashinfer: Any) -> None:
    float8 = torch.float8_e4m3fn
    ops = with_flashinfer(replace(TORCH, attend=refuse), GPU, DTYPE, DIM, float8)
    case = Case((1, 1), 2)
    scale = KvScale(0.5, 2.0)
    case.kv = LayerKV(case.kv.k.to(float8), case.kv.v.to(float8), scale)
    assert torch.equal(ops.attend(*case.on_device(), None).cpu(), case.wanted())


def test_more_plans_than_wrappers_wait_for_an_event_and_stay_right(
    gpu: ShadowDevice, ops: Backend
) -> None:
    cases = [Case((1, 1), 2, seed) for seed in range(PLANS + 2)]
    args = [case.on_device() for case in cases]
    before = gpu.event_waits
    outs = [ops.attend(*one, None) for one in args]
    assert gpu.event_waits > before
    for out, case in zip(outs, cases, strict=True):
        assert torch.equal(out.cpu(), case.wanted())


# What the shadow device catches


def test_the_shadow_device_notices_pinned_memory_of_a_plan_used_too_early(
    gpu: ShadowDevice, flashinfer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "PLANS", 1)
    ops = with_flashinfer(TORCH, GPU, DTYPE, DIM, DTYPE)
    args = [Case((1, 1), 0, seed).on_device() for seed in range(2)]
    monkeypatch.setattr(torch.cuda.Event, "query", lambda self: True)
    for one in args:
        ops.attend(*one, None)
    with pytest.raises(HostBufferMisused):
        torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("qo_lens", "slack", "bounds", "error"),
    [
        ((1, 1), 3, lambda lens: CausalBounds(tuple(one - 1 for one in lens), 1), "were planned"),
        ((2, 2), 3, lambda lens: CausalBounds(tuple(one + 3 for one in lens), 0), "other places"),
    ],
)
def test_the_stand_in_notices_wrong_bounds(
    gpu: ShadowDevice, ops: Backend, qo_lens, slack, bounds, error: str
) -> None:
    q, kv, metadata = Case(qo_lens, slack).on_device()
    lens = tuple(metadata.kv_lens[qo_lens[0] - 1 :: qo_lens[0]].tolist())
    with pytest.raises(FlashInferMisused, match=error):
        ops.attend(q, kv, replace(metadata, causal_bounds=bounds(lens)), None)


def test_a_plan_in_a_capture_is_refused(gpu: ShadowDevice, ops: Backend) -> None:
    args = Case((1, 1), 0).on_device()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="cannot plan while a CUDA graph is captured"):
        ops.attend(*args, None)
    graph.capture_end()


# The stand-in


@pytest.mark.parametrize(
    ("place", "waits"),
    [("pinned", 0), ("pageable", 4), ("device", 5)],
)
def test_the_stand_in_waits_for_lengths_that_the_host_does_not_have(
    gpu: ShadowDevice, flashinfer: Any, place: str, waits: int
) -> None:
    workspace = torch.zeros(1 << 10, dtype=torch.uint8, device=GPU)
    wrapper = flashinfer(workspace, "NHD", backend="fa2")
    numbers = [torch.tensor(one, dtype=torch.int32) for one in ([0, 1], [0, 1], [PAGE], [PAGE])]
    if place == "pinned":
        numbers = [one.pin_memory() for one in numbers]
    if place == "device":
        numbers = [one.to(GPU) for one in numbers]
    starts, page_starts, last, lens = numbers
    indices = torch.ones(1, dtype=torch.int32, device=GPU)
    sizes = (2, 2, DIM, PAGE)
    with gpu.counting() as found:
        wrapper.plan(starts, page_starts, indices, last, *sizes, q_data_type=DTYPE, seq_lens=lens)
    assert len(found) == waits


def methods_in(source: str) -> dict[str, list[str]]:
    """Parameters of the wrapper's methods in a source, overloads left out."""
    name = BatchPrefillWithPagedKVCacheWrapper.__name__
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    wrapper = next(node for node in classes if node.name == name)
    methods = (node for node in wrapper.body if isinstance(node, ast.FunctionDef))
    return {
        node.name: [one.arg for one in (*node.args.args, *node.args.kwonlyargs)]
        for node in methods
        if not any("overload" in ast.unparse(one) for one in node.decorator_list)
    }


def test_the_stand_in_has_the_parameters_of_the_pinned_version() -> None:
    """Compare versions with the lock file, and parameters with the sources where installed."""
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    versions = {one["name"]: one.get("version") for one in locked}
    assert versions["flashinfer-python"] == VERSION
    own = methods_in(inspect.getsource(flashinfer_module))
    assert own["run"][:2] == ["self", "q"]
    spec = find_spec("flashinfer")
    if spec is not None and spec.submodule_search_locations:
        (folder,) = spec.submodule_search_locations
        theirs = methods_in((Path(folder) / "prefill.py").read_text())
        for name in ("__init__", "reset_workspace_buffer", "plan", "run"):
            assert own[name] == theirs[name]
