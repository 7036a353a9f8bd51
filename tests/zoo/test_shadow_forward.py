"""On a shadow CUDA device a forward of every required type never waits, and is one graph, which
allocates nothing outside of its pool."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from checks.zoo.logits import TOLERANCE, PagedTexts
from checks.zoo.models import REQUIRED, read_models
from specdecode_engine.model.kv.kv_views import PagedView
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.model.transformers.modules import RowRmsNorm
from specdecode_kernels import TORCH, Backend, choose_backend
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.errors import CaptureRefused
from tests.shadow_cuda.ops import with_reference_numbers
from tests.shadow_cuda.runtime import ShadowGraph
from tests.zoo.conftest import MakeModel

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
TYPES = [
    name
    for name, model in read_models().items()
    if model.group == REQUIRED and not model.has_states  # a step changes those, at every replay
]
TEXTS = 2
PROMPT = 19  # longer than the windows
IDS = torch.arange(6, 6 + TEXTS * (PROMPT + 2)).view(TEXTS, -1)


@dataclass(frozen=True, slots=True)
class Step:
    """Inputs of one forward, which a graph reads wherever they are."""

    ids: Tensor
    positions: Tensor
    view: PagedView

    def load(self, other: "Step") -> None:
        """Copy the inputs of another step of the same shape."""
        self.ids.copy_(other.ids)
        self.positions.copy_(other.positions)
        self.view.slot_mapping.copy_(other.view.slot_mapping)
        self.view.layout.kv_lens.copy_(other.view.layout.kv_lens)


class Decoder:
    """A model and two texts, of which it computes a prompt and then one row of each per step."""

    def __init__(self, config: TransformersConfig, device: torch.device, ops: Backend) -> None:
        self.model = TransformersModel.load(config, device=device, linears=Linears(ops))
        self._texts = PagedTexts.make(self.model, 4, ops)

    def step(self, start: int, end: int) -> Step:
        """Lay out positions from start to end of every text."""
        positions, view = self._texts.spans([(text, start, end) for text in range(TEXTS)])
        return Step(IDS[:, start:end].flatten().to(positions.device), positions, view)

    def steps(self) -> list[Step]:
        """Lay out the prompts and two steps after them."""
        return [self.step(0, PROMPT), *(self.step(at, at + 1) for at in (PROMPT, PROMPT + 1))]

    def logits(self, step: Step) -> Tensor:
        hidden, _ = self.model.forward(step.ids, step.positions, step.view)
        return self.model.logits(hidden)


def make_decoder(config: TransformersConfig, gpu: ShadowDevice) -> Decoder:
    """Load a model on the shadow device, with the kernels of a GPU."""
    triton = choose_backend("auto", CUDA, torch.float32, 16).backend
    return Decoder(config, CUDA, with_reference_numbers(triton, gpu))


def capture(decoder: Decoder, step: Step) -> tuple[ShadowGraph, Tensor]:
    """Record a step; return the graph and its logits."""
    graph: Any = torch.cuda.CUDAGraph()
    graph.capture_begin()
    try:
        return graph, decoder.logits(step)
    finally:
        graph.capture_end()


@pytest.mark.parametrize("name", TYPES)
def test_a_forward_never_waits_and_is_one_graph(name: str, make_model: MakeModel) -> None:
    config = TransformersConfig.load(make_model(name)[0])
    plain = Decoder(config, CPU, TORCH)
    prompt, first, second = (plain.logits(step) for step in plain.steps())
    with shadow_cuda() as gpu:
        decoder = make_decoder(config, gpu)
        steps, static = decoder.steps(), decoder.step(PROMPT + 1, PROMPT + 2)
        with gpu.counting() as waits:
            computed = [decoder.logits(step) for step in steps]
            before = gpu.memory.allocations
            graph, logits = capture(decoder, static)
            in_capture, in_replays = gpu.memory.allocations - before, 0
            for step in steps[1:]:
                static.load(step)
                before = gpu.memory.allocations
                graph.replay()
                in_replays += gpu.memory.allocations - before
                computed.append(logits.clone())
                # What a forward keeps for the next one must not lie in the graph's memory.
                computed.append(decoder.logits(step))
        assert waits == []
        assert gpu.errors == []
        assert in_capture == graph.allocations > 0, "all memory is of the graph's pool"
        assert in_replays == 0
        found = [one.cpu() for one in computed]
    wanted = [prompt, first, second, first, first, second, second]
    for got, right in zip(found, wanted, strict=True):
        assert (got - right).abs().max() <= TOLERANCE * right.abs().max()


def test_a_module_that_reads_the_device_is_caught(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check itself: a wait shows in an eager forward, and no graph is captured."""
    config = TransformersConfig.load(make_model("llama")[0])
    forward = RowRmsNorm.forward

    def reading(norm: RowRmsNorm, x: Tensor) -> Tensor:
        assert x.max().item() < torch.inf
        return forward(norm, x)

    with shadow_cuda() as gpu:
        decoder = make_decoder(config, gpu)
        step = decoder.steps()[0]
        monkeypatch.setattr(RowRmsNorm, "forward", reading)
        with gpu.counting() as waits:
            decoder.logits(step)
        assert len(waits) == 1  # the final norm; those of the layers are part of each layer
        with pytest.raises(CaptureRefused, match="capturing"):
            capture(decoder, step)
