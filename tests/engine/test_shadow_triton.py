"""On the shadow device every op of the Triton backend launches for real and has true numbers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specdecode_kernels import AttentionParams, Backend, choose_backend
from specdecode_kernels.backend import TORCH
from specdecode_kernels.testing import OPS, Shape, backend_of, draw_case, implementation_of
from specdecode_kernels.testing.op_calls import calls
from specdecode_kernels.triton.apply_rope import apply_rope
from specdecode_kernels.triton.gather_accepted import gather_accepted
from specdecode_kernels.triton.rms_norm import rms_norm
from specdecode_kernels.triton.sample import sample
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.errors import CaptureRefused, MixedDevices
from tests.shadow_cuda.ops import all_tensors, map_records, with_reference_numbers

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NAMES = sorted(calls(CPU))


@pytest.fixture
def gpu() -> Iterator[ShadowDevice]:
    with shadow_cuda() as device:
        yield device


def triton_backend(gpu: ShadowDevice) -> Backend:
    return with_reference_numbers(backend_of("triton", CUDA), gpu)


def arguments_of(name: str) -> tuple[Any, ...]:
    """What an op of `calls` is called with, on the CPU."""
    given: list[tuple[Any, ...]] = []
    calls(CPU)[name](replace(TORCH, **{name: lambda *arguments: given.append(arguments)}))  # type: ignore[arg-type]
    return given[0]


def on_device(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map_records(one, lambda tensor: tensor.to(CUDA)) for one in arguments)


def values(*tensors: Any) -> list[list[float]]:
    """Results, and what was written in place."""
    return [one.float().nan_to_num(nan=7.25).tolist() for one in all_tensors(tensors)]


@pytest.mark.parametrize("name", NAMES)
def test_an_op_launches_and_has_the_references_numbers(gpu: ShadowDevice, name: str) -> None:
    plain = arguments_of(name)
    given, op = on_device(plain), getattr(triton_backend(gpu), name)
    before = gpu.launches
    with gpu.counting() as waits:
        results = op(*given)
    assert gpu.launches > before
    assert waits == []
    wanted = values(getattr(TORCH, name)(*plain))
    assert values(results) == wanted
    # Kernels write over the q and k that they turn, the reference does not.
    kept = {"apply_rope": 0, "rope_and_store_kv": 2}.get(name, len(given))
    assert values(*given[:kept]) == values(*plain[:kept])


@pytest.mark.parametrize("name", NAMES)
def test_an_op_has_the_references_numbers_in_a_replay(gpu: ShadowDevice, name: str) -> None:
    plain = arguments_of(name)
    given, op = on_device(plain), getattr(triton_backend(gpu), name)
    before, graph = gpu.launches, torch.cuda.CUDAGraph()
    graph.capture_begin()
    try:
        results = op(*given)
    finally:
        graph.capture_end()
    assert gpu.launches == before, "what a graph holds is launched by its replay alone"
    unchanged = values(*given)
    assert unchanged == values(*plain), "capturing writes nothing"
    graph.replay()
    assert gpu.captures == gpu.replays == 1
    assert values(results) == values(getattr(TORCH, name)(*plain))


@pytest.mark.parametrize("tree_rows", [0, 5])
def test_attention_with_every_feature_is_right_in_a_replay(
    gpu: ShadowDevice, tree_rows: int
) -> None:
    params = AttentionParams(scale=0.2, logit_softcap=3.0, sliding_window=6)
    shape = Shape((3, 3), tree_rows=tree_rows, is_causal=True, v_dim=24, params=params)
    case = draw_case(replace(shape, has_sinks=True), 0)
    plain = (case.q, case.kv, case.metadata, case.tree_kv, case.params)
    given, backend, graph = on_device(plain), triton_backend(gpu), torch.cuda.CUDAGraph()
    with gpu.counting() as waits:
        eager = backend.attend(*given)
        graph.capture_begin()
        result = backend.attend(*given)
        graph.capture_end()
        graph.replay()
    assert waits == []
    assert values(eager) == values(result) == values(case.attend())


def test_a_graph_of_a_mixture_takes_any_routing(gpu: ShadowDevice) -> None:
    """Nothing of a replay follows from the experts that were chosen when it was captured."""
    hidden, routing, weights, activation = arguments_of("experts")
    backend, graph = triton_backend(gpu), torch.cuda.CUDAGraph()
    given = on_device((hidden, routing, weights, activation))
    all_ids = torch.tensor(
        [[[2, 0], [0, 1], [2, 1]], [[3, 3]] * 3, [[0, 1], [2, 3], [1, 0]]], dtype=torch.int32
    )
    there, results = all_ids.to(CUDA), []
    with gpu.counting() as waits:
        graph.capture_begin()
        result = backend.experts(*given)
        graph.capture_end()
        launched = gpu.triton_launches
        for ids in there:
            given[1].ids.copy_(ids)
            graph.replay()
            results.append(result.clone())
    assert waits == []
    assert gpu.triton_launches == launched, "launchers run once"
    for ids, found in zip(all_ids, results, strict=True):
        right = TORCH.experts(hidden, routing._replace(ids=ids), weights, activation)
        assert values(found) == values(right)


def test_every_op_with_a_launcher_is_tested_here_and_its_kernel_by_the_interpreter(
    gpu: ShadowDevice,
) -> None:
    backend = backend_of("triton", CUDA)
    launched = {op for op in OPS if implementation_of(op, backend) == "triton"}
    assert launched - {"attend_with_lse"} == set(NAMES)
    folder = Path(__file__).parents[1] / "kernels"
    assert [op for op in NAMES if not (folder / f"test_{op}_triton.py").exists()] == []


def test_what_is_computed_in_place_is_written(gpu: ShadowDevice) -> None:
    backend = triton_backend(gpu)
    q, k = torch.ones(2, 1, 4, device=CUDA), torch.ones(2, 1, 4, device=CUDA)
    cos, sin = torch.zeros(2, 2, device=CUDA), torch.ones(2, 2, device=CUDA)
    turned, _ = backend.apply_rope(q, k, cos, sin)
    assert turned.data_ptr() == q.data_ptr()
    assert q.tolist() == [[[-1, -1, 1, 1]]] * 2


def test_a_launcher_alone_leaves_poison(gpu: ShadowDevice) -> None:
    x = torch.ones(2, 8, device=CUDA)
    assert rms_norm(x, x[0], 1e-5).isnan().all()


@pytest.mark.parametrize(
    "launch",
    [
        lambda x, host: rms_norm(x, host[0], 1e-5),
        lambda x, host: gather_accepted(x[:, :, None], torch.zeros(2, 1, dtype=torch.int64)),
        lambda x, host: sample(x[:, None], None, torch.zeros(2, 1, dtype=torch.int64), None),
        lambda x, host: apply_rope(x[:, None], x[:, None], host[:, :4], x[:, :4]),
    ],
)
def test_an_operand_on_the_cpu_is_refused(
    gpu: ShadowDevice, launch: Callable[[torch.Tensor, torch.Tensor], object]
) -> None:
    with pytest.raises(MixedDevices, match="cannot be accessed from Triton"):
        launch(torch.ones(2, 8, device=CUDA), torch.ones(2, 8))


def test_waits_of_a_launcher_are_counted_and_refused_in_a_capture(
    gpu: ShadowDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = TORCH.rms_norm

    def waiting(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps * float(weight[0]))

    backend = with_reference_numbers(_with(waiting), gpu)
    x = torch.ones(2, 8, device=CUDA)
    with gpu.counting() as waits:
        got = backend.rms_norm(x, x[0], 1e-5)
    assert [wait.file for wait in waits] == [__file__]
    assert got.tolist() == reference(torch.ones(2, 8), torch.ones(8), 1e-5).tolist()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    with pytest.raises(CaptureRefused, match=r"Tensor|_local_scalar_dense"):
        backend.rms_norm(x, x[0], 1e-5)
    with pytest.raises(CaptureRefused):
        graph.capture_end()


def _with(op: Callable[..., torch.Tensor]) -> Backend:
    return replace(TORCH, rms_norm=op)


@pytest.mark.parametrize(
    ("capability", "chosen"), [((9, 0), "triton"), ((8, 0), "triton"), ((7, 5), "torch")]
)
def test_backends_are_chosen_as_on_a_gpu_of_that_capability(
    capability: tuple[int, int], chosen: str
) -> None:
    with shadow_cuda(capability=capability):
        choice = choose_backend("auto", CUDA, torch.bfloat16, 16)
    assert choice.backend.attention == chosen
