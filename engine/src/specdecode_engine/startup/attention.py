"""Chooses the attention backend of target and draft once, and records the reason."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from specdecode_api.boot import EngineBoot
from specdecode_api.report import TerminationReason
from specdecode_engine.model.model_config import LlamaConfig
from specdecode_engine.startup.sizes import Loaded, kv_dtype
from specdecode_kernels import Backend, Choice, choose_backend

log = logging.getLogger(__name__)


class AttentionUnavailable(Exception):
    """The requested backend cannot run; the message contains the reason and the remedy."""

    reason: ClassVar[TerminationReason] = TerminationReason.CANNOT_SERVE


@dataclass(frozen=True, slots=True)
class KernelChoices:
    """The choice for each model; its layers, KV cache and the ops after it use one backend."""

    target: Choice
    draft: Choice | None

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The backends of all models."""
        return tuple(choice.backend for _, choice in self.choices())

    def facts(self) -> dict[str, object]:
        """Return every choice and its reason, in readable form."""
        facts: dict[str, object] = {}
        for whose, choice in self.choices():
            facts[f"{whose}_attention"] = choice.backend.attention
            facts[f"{whose}_attention_reason"] = choice.reason
        return facts

    def choices(self) -> Iterator[tuple[str, Choice]]:
        """Yield each model's name and choice."""
        yield "target", self.target
        if self.draft is not None:
            yield "draft", self.draft


def choose_target_backend(boot: EngineBoot, device: torch.device, dtype: torch.dtype) -> Choice:
    """Choose for the target, before weights are read.

    Raises:
        AttentionUnavailable: the requested attention backend cannot run.
    """
    config = LlamaConfig.load(Path(boot.model.path))
    return _choose(boot, "target", device, dtype, config.decoder.head_dim)


def choose_attention(boot: EngineBoot, loaded: Loaded) -> KernelChoices:
    """Choose for the draft too, and log the reasons.

    Raises:
        AttentionUnavailable: the requested attention backend cannot run for it.
    """
    draft = None
    if loaded.draft is not None:
        head_dim = loaded.draft.shape.head_dim
        draft = _choose(boot, "draft", loaded.device, loaded.dtype, head_dim)
    attention = KernelChoices(loaded.kernels, draft)
    for whose, choice in attention.choices():
        log.info("attention of the %s: %s (%s)", whose, choice.backend.attention, choice.reason)
    return attention


def _choose(
    boot: EngineBoot, whose: str, device: torch.device, dtype: torch.dtype, head_dim: int
) -> Choice:
    wanted = boot.attention_backend
    try:
        return choose_backend(wanted, device, dtype, head_dim, kv_dtype(boot, dtype))
    except ValueError as error:
        raise AttentionUnavailable(
            f"attention_backend {wanted} cannot serve the {whose}: {error}"
        ) from None
