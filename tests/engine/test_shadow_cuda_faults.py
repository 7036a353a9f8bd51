"""The shadow CUDA device catches errors that otherwise occur only on a GPU."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs, TargetForward
from specdecode_engine.startup import config
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.config import GraphMode, GraphsUnavailable
from tests.engine.whole_engine import boot_of, requests_of
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import GIB, ShadowDevice
from tests.shadow_cuda.errors import CaptureRefused, HostBufferMisused, MixedDevices
from tests.shadow_cuda.poison import INTEGER
from tests.shadow_cuda.runtime import ShadowEvent


@pytest.fixture
def gpu() -> Iterator[ShadowDevice]:
    with shadow_cuda() as device:
        yield device


def capture(work: Callable[[], object]) -> Callable[[], None]:
    """Warm up, capture, and return what replays."""
    work()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    try:
        work()
    finally:
        graph.capture_end()
    return graph.replay


def sent(tensor: Tensor) -> Tensor:
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


# Copies to the host


@pytest.mark.parametrize(
    ("values", "poisoned"),
    [([1, 2], [INTEGER] * 2), ([True, False], [False, True]), ([1.5, 2.5], None)],
)
def test_a_copy_shows_poison_until_its_event_was_waited_for(gpu, values, poisoned) -> None:
    early, late = torch.cuda.Event(), torch.cuda.Event()
    on_device = torch.tensor(values, device="cuda")
    early.record()
    host = sent(on_device)
    late.record()
    on_device.zero_()  # later in the stream
    early.synchronize()
    assert host.isnan().all() if poisoned is None else host.tolist() == poisoned
    late.synchronize()
    assert host.tolist() == values


@pytest.mark.parametrize(
    "wait",
    [lambda: torch.cuda.synchronize(), lambda: torch.cuda.current_stream().synchronize()],
    ids=["device", "stream"],
)
def test_a_copy_arrives_when_the_stream_or_the_device_was_waited_for(gpu, wait) -> None:
    host = sent(torch.arange(3, device="cuda"))
    with torch.cuda.stream(torch.cuda.Stream()):
        wait()
    assert host.tolist() == [0, 1, 2]


def test_an_event_that_was_not_reached_delivers_nothing(gpu) -> None:
    host = sent(torch.arange(3, device="cuda"))
    event = torch.cuda.Event()
    event.record()
    assert not event.query()
    assert host.tolist() == [INTEGER] * 3
    assert event.query()
    assert host.tolist() == [0, 1, 2]


def test_pinned_memory_that_is_overwritten_too_early_is_an_error(gpu) -> None:
    numbers = torch.zeros(4, dtype=torch.int64, pin_memory=True)
    numbers.to("cuda", non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    numbers.fill_(7)
    with pytest.raises(HostBufferMisused, match="overwritten before"):
        event.synchronize()


# Waits


@pytest.mark.parametrize(
    "read",
    [
        lambda x, host: x.sum().item(),
        lambda x, host: x.tolist(),
        lambda x, host: x.cpu(),
        lambda x, host: bool(x[0]),
        lambda x, host: x.__setitem__(1, 5),
        lambda x, host: torch.tensor([1, 2], device="cuda"),
        lambda x, host: x.repeat_interleave(x),
        lambda x, host: x[x > 1],
        lambda x, host: x[[0, 2]],
        lambda x, host: (x > 1).nonzero(),
        lambda x, host: host.to("cuda"),
        lambda x, host: host.to("cuda", non_blocking=True),  # it is not pinned
        lambda x, host: host.copy_(x, non_blocking=True),
        lambda x, host: torch.cuda.synchronize(),
    ],
)
def test_a_wait_is_counted_with_its_line_and_refused_in_a_capture(gpu, read) -> None:
    x, host = torch.arange(4, device="cuda"), torch.zeros(4, dtype=torch.int64)
    with gpu.counting() as waits:
        read(x, host)
    assert len(waits) == 1
    assert waits[0].file == __file__
    assert waits[0].line == read.__code__.co_firstlineno
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    with pytest.raises(CaptureRefused, match="not permitted when stream is capturing"):
        read(x, host)
    with pytest.raises(CaptureRefused):
        graph.capture_end()


def test_what_needs_no_wait_is_not_counted(gpu) -> None:
    pinned = torch.arange(4).pin_memory()
    with gpu.counting() as waits:
        x = pinned.to("cuda", non_blocking=True)
        torch.zeros(4, device="cuda").index_copy_(0, x, torch.ones(4, device=x.device))
        x.repeat_interleave(x, output_size=6)
        x.masked_fill_(x > 2, 0)
        x[x > 1] = 0
        x[1:3] += torch.tensor(3)  # a scalar on the CPU is an argument of the kernel
        sent(x[x.clamp(max=3)])
    assert waits == []


# Devices


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: x.index_copy_(0, torch.tensor([0]), x[:1]),
        lambda x: torch.add(torch.ones(3), torch.ones(3), out=x),
        lambda x: x.gather(0, torch.tensor(0)),
    ],
)
def test_an_operand_on_the_cpu_is_an_error(gpu, mix) -> None:
    with pytest.raises(MixedDevices, match=r"same device.*test_shadow_cuda_faults.py"):
        mix(torch.ones(3, device="cuda"))
    assert len(gpu.errors) == 1


def test_memory_is_finite(gpu) -> None:
    free, total = torch.cuda.mem_get_info()
    assert free == total == 2 * GIB
    kept = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info() == (GIB, 2 * GIB)
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(GIB + 1, dtype=torch.uint8, device="cuda")
    del kept
    assert torch.cuda.mem_get_info()[0] == 2 * GIB


def test_everything_is_restored() -> None:
    before = {name: getattr(torch.cuda, name) for name in ("Event", "is_available", "synchronize")}
    with shadow_cuda():
        left_over = torch.zeros(2, device="cuda")
    assert {name: getattr(torch.cuda, name) for name in before} == before
    assert torch.zeros(2).is_cpu
    with pytest.raises(RuntimeError, match="not active"):
        left_over + 1


# Graphs


def test_a_graph_reads_its_inputs_anew_and_keeps_python_numbers(gpu) -> None:
    x, out = torch.ones(2, device="cuda"), torch.zeros(2, device="cuda")
    factor = 3
    replay = capture(lambda: out.copy_((x + 1) * factor))
    out.zero_()
    factor = 100  # a stale number: the graph still uses 3
    x.fill_(4)
    replay()
    assert out.tolist() == [15, 15]


def test_capturing_executes_nothing(gpu) -> None:
    count = torch.zeros(1, device="cuda")
    replay = capture(lambda: count.add_(1))
    assert count.tolist() == [1]  # by warming up
    replay()
    assert count.tolist() == [2]


def test_a_graph_that_kept_a_tensor_of_an_older_step_answers_wrongly(gpu) -> None:
    """A stale layout: lengths are a new tensor in every step, the graph reads the first one."""
    step = {"lengths": torch.tensor([1, 2], device="cuda")}
    fixed, out = torch.zeros(2, 2, dtype=torch.int64, device="cuda")

    def right() -> None:
        out.copy_(fixed * 10)

    def stale() -> None:
        out.copy_(step["lengths"] * 10)

    answers = {}
    for work in (right, stale):
        step["lengths"] = torch.tensor([1, 2], device="cuda")
        replay = capture(work)
        step["lengths"] = torch.tensor([5, 6], device="cuda")
        fixed.copy_(step["lengths"])
        replay()
        answers[work.__name__] = out.tolist()
    assert answers == {"right": [50, 60], "stale": [10, 20]}


def test_a_result_that_stays_in_the_pool_is_lost_at_the_next_replay(gpu) -> None:
    x, results = torch.ones(2, device="cuda"), []
    pool = torch.cuda.graph_pool_handle()
    replays = []
    for number in range(2):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool)
        results.append(x + number)
        graph.capture_end()
        replays.append(graph.replay)
    assert results[0].isnan().all()
    replays[0]()
    assert results[0].tolist() == [1, 1]
    replays[1]()
    assert results[0].isnan().all()
    assert results[1].tolist() == [2, 2]


def test_a_copy_from_a_host_buffer_that_was_freed_is_an_error_at_replay(gpu) -> None:
    on_device = torch.zeros(2, dtype=torch.int64, device="cuda")
    buffers = [torch.tensor([1, 2]).pin_memory()]
    replay = capture(lambda: on_device.copy_(buffers[0], non_blocking=True))
    buffers[0].fill_(9)
    with pytest.raises(HostBufferMisused, match="overwritten"):
        torch.cuda.synchronize()  # the warm-up's copy was still under way
    replay()
    assert on_device.tolist() == [9, 9]
    buffers.clear()
    with pytest.raises(HostBufferMisused, match="freed after the capture"):
        replay()


def test_a_copy_to_the_host_inside_a_graph_has_to_be_waited_for(gpu) -> None:
    x, host = torch.ones(2, device="cuda"), torch.zeros(2).pin_memory()
    replay = capture(lambda: host.copy_(x, non_blocking=True))
    torch.cuda.synchronize()
    x.fill_(4)
    replay()
    assert host.isnan().all()  # a stale copy would show the ones of the warm-up
    torch.cuda.synchronize()
    assert host.tolist() == [4, 4]


# Whole engines


def build(checkpoints, device: str, graphs: str) -> EngineCore:
    document = boot_of(
        checkpoints, "EAGLE3", 1, graphs={"mode": graphs}, attention_backend="torch", device=device
    )
    document["model"]["context_length"] = 64
    return build_core(EngineBoot.model_validate(document))


def first_tokens(core: EngineCore, vocab: int) -> list[tuple[int, ...]]:
    for request in requests_of(vocab, 1, 4):
        core.submit(request)
    return [output.token_ids for _ in range(8) for output in core.step()]


def test_an_engine_that_does_not_wait_for_its_copies_answers_wrongly(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDECODE_KERNELS", "torch")
    wanted = first_tokens(build(checkpoints, "cpu", "off"), checkpoints.vocab)
    monkeypatch.setattr(ShadowEvent, "synchronize", lambda self: None)
    with shadow_cuda():
        try:
            got = first_tokens(build(checkpoints, "cuda", "off"), checkpoints.vocab)
        except (ValueError, IndexError, RuntimeError, OverflowError):
            return  # the engine stumbled over what was no token
    assert got != wanted


def wait_for_a_sum(x: Tensor) -> Tensor:
    """Return `x` after a wait that no graph can contain."""
    return x * float(x.sum().item() * 0 + 1)


def break_verify(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Tensor], Tensor]) -> None:
    """Apply `fault` to the output of the target's forward."""
    call = TargetForward.__call__

    def broken(self: TargetForward, inputs: ForwardInputs) -> ForwardOutputs:
        outputs = call(self, inputs)
        return outputs._replace(logits=fault(outputs.logits))

    monkeypatch.setattr(TargetForward, "__call__", broken)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (wait_for_a_sum, CaptureRefused),
        (lambda x: x * torch.ones(x.shape), MixedDevices),
    ],
    ids=["item", "operand"],
)
def test_an_engine_that_must_capture_a_faulty_forward_does_not_start(
    checkpoints, monkeypatch: pytest.MonkeyPatch, fault, error
) -> None:
    monkeypatch.setenv("SPECDECODE_KERNELS", "torch")
    break_verify(monkeypatch, fault)
    with shadow_cuda() as gpu, pytest.raises(GraphsUnavailable, match=error.__name__):
        build(checkpoints, "cuda", "cuda")
    assert len(gpu.errors) == 1


def test_an_engine_under_mode_auto_serves_eagerly_when_capturing_fails(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDECODE_KERNELS", "torch")
    wanted = first_tokens(build(checkpoints, "cpu", "off"), checkpoints.vocab)
    break_verify(monkeypatch, wait_for_a_sum)
    monkeypatch.setattr(config, "choose_graph_mode", lambda *_: GraphMode("cuda", "tried"))
    with shadow_cuda() as gpu:
        core = build(checkpoints, "cuda", "auto")
        assert first_tokens(core, checkpoints.vocab) == wanted
    report = core.context.graphs.report()
    assert report.failure.startswith("capturing failed: CaptureRefused")
    assert (report.pairs, set(report.eager_steps)) == (0, {"refused"})
    assert len(gpu.errors) == 1
    assert gpu.pool_in_use is None, "the allocator takes no capture for underway"
