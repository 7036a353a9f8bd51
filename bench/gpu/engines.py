"""Engines of the 8B shape: built once, shared, given back before peers need the room."""

from pathlib import Path
from typing import cast

import torch

from bench.gpu.random_weights import opener, write_configs, write_mixture
from bench.gpu.record import CannotMeasure
from bench.gpu.scale import Scale
from bench.gpu.ways import plain_weights
from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.layers.layers import Mlp
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.startup.build import build_core

STRONG, WEAK = 0.02, 0.1
"""Epsilons of a draft that mostly agrees and of one that mostly does not."""


class Engines:
    """The speculating engine and plain ones, on random weights.

    Args:
        device: what they compute on.
        scale: their sizes.
        folder: for the config.json of target and draft.
    """

    def __init__(self, device: torch.device, scale: Scale, folder: Path) -> None:
        self._device = device
        self._scale = scale
        self._folder = folder
        self._target, self._draft = write_configs(folder, scale.model)
        self._kept: dict[str, EngineCore] = {}
        self._faults: dict[str, str] = {}
        self._epsilon = STRONG

    def adaptive(self) -> EngineCore:
        """Every depth captured, policy goodput; whoever dictates a depth puts the policy back."""
        return self._keep("adaptive", self.document("goodput", self._scale.depths))

    def divided(self) -> EngineCore:
        """Large batches, and steps that verify fewer tokens than they draft."""
        scale = self._scale
        sizes = scale.batches[-1], scale.most_running
        document = self.document("goodput", scale.divided_depths, sizes, kv_part=0.5)
        speculation = document["speculation"]
        assert isinstance(speculation, dict)
        speculation["table"]["1"]["verify_tokens"] = scale.verify_tokens
        return self._keep("divided", document)

    def plain(self) -> EngineCore:
        """No draft at all."""
        return self._keep("plain", self.document(None, (0,), kv_part=0.5))

    def without_overlap(self, num_steps: int) -> EngineCore:
        """One request, one depth, and the host waits for every step; not kept."""
        document = self.document("static", (num_steps,), batches=(1,), overlap=False)
        return self._build(document)

    def with_overlap(self, num_steps: int) -> EngineCore:
        """Build the same, but for the waiting; not kept."""
        return self._build(self.document("static", (num_steps,), batches=(1,), overlap=True))

    def of_mixture(self) -> EngineCore:
        """Build a mixture of experts without a draft; not kept."""
        scale = self._scale
        folder = write_mixture(self._folder / "mixture", scale.mixture_model, scale.mixture)
        document = self.document(None, (0,), scale.batches, kv_part=0.5)
        document["model"] = {"path": str(folder), "context_length": scale.mixture_model.context}
        return self._build(document)

    def with_head(self, algorithm: str, head: Path) -> EngineCore:
        """Build an engine whose head or draft lies in a folder; not kept.

        A random head is not left out although nothing of it is accepted.
        """
        scale = self._scale
        document = self.document("goodput", scale.head_depths, scale.head_batches, kv_part=0.5)
        own = {"algorithm": algorithm, "draft_path": str(head), "profile_seconds": 0}
        document["speculation"] = {**cast(dict[str, object], document["speculation"]), **own}
        core = self._build(document)
        core.scheduler.drafting.health = None
        return core

    def agree(self, epsilon: float) -> None:
        """Turn the dial of every engine that is built, in place: CUDA graphs see it too.

        Policies then take the draft for another one, as after its exchange.
        """
        factor, self._epsilon = epsilon / self._epsilon, epsilon
        for core in self._kept.values():
            core.scheduler.drafting.policy.forget_draft()
            target = core.context.target
            assert isinstance(target, Llama)
            for layer in target.layers[1:]:
                layer.attention.output.plain_weight().mul_(factor)
                assert isinstance(layer.mlp, Mlp)
                layer.mlp.down.plain_weight().mul_(factor)

    def release(self) -> None:
        """Forget the engines; their memory is free once nobody holds one."""
        self._kept.clear()

    def document(
        self,
        policy: str | None,
        depths: tuple[int, ...],
        batches: tuple[int, ...] | None = None,
        overlap: bool | None = None,
        kv_part: float = 1.0,
    ) -> dict[str, object]:
        """Write the boot file; policy None is an engine without a draft."""
        scale = self._scale
        batches = batches or (*scale.batches, scale.most_running)
        speculation: dict[str, object] = {}
        if policy is not None:
            speculation = {
                "algorithm": "STANDALONE",
                "draft_path": str(self._draft),
                "num_steps": depths[-1],
                "policy": policy,
                "profile_seconds": scale.profile_seconds,
            }
            if policy != "static":
                speculation["table"] = {"1": {"candidate_steps": depths}}
        return {
            "model": {"path": str(self._target), "context_length": scale.model.context},
            "speculation": speculation,
            "memory": {
                "prefix_cache": False,
                "kv_cache_bytes": int(kv_part * scale.kv_cache_bytes) if len(batches) > 1 else None,
                "kv_cache_fraction": 0.3,
            },
            "scheduling": {
                "max_running_requests": max(batches),
                "chunked_prefill_tokens": 4096,
                "overlap": overlap,
            },
            "graphs": {"mode": self._graphs(), "batch_sizes": batches, "max_seconds": 40},
            "device": self._device.type,
            "threads": scale.threads,
        }

    def _graphs(self) -> str:
        return "cuda" if self._device.type == "cuda" else "static"

    def _keep(self, name: str, document: dict[str, object]) -> EngineCore:
        """Build once; what failed or took too long is not tried again by every section."""
        if name in self._faults:
            raise CannotMeasure(f"the {name} engine could not be built: {self._faults[name]}")
        if name not in self._kept:
            try:
                self._kept[name] = self._build(document)
            except BaseException as error:
                self._faults[name] = repr(error)
                raise
        return self._kept[name]

    def _build(self, document: dict[str, object]) -> EngineCore:
        boot = EngineBoot.model_validate(document)
        with plain_weights():  # `agree` changes them in place, in a dry run on a CPU too
            return build_core(boot, open_store=opener(self._epsilon))
