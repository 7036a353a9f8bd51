"""Which attention backend each pool gets: chosen once, by what can run, with the reason."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from specdecode_api.boot import EngineBoot
from specdecode_api.report import Reason
from specdecode_engine.forward.model_config import LlamaConfig
from specdecode_engine.sizes import Loaded, kv_dtype
from specdecode_kernels import AttentionBackend, Choice, choose_backend

log = logging.getLogger(__name__)


class AttentionUnavailable(Exception):
    """The boot file asks for a backend that cannot run; the message says why and what to do."""

    reason: ClassVar[Reason] = Reason.CANNOT_SERVE


@dataclass(frozen=True, slots=True)
class Attention:
    """The choice for each pool."""

    target: Choice
    draft: Choice | None

    @property
    def backends(self) -> tuple[AttentionBackend, ...]:
        """Of all pools."""
        return tuple(choice.backend for _, choice in self.choices())

    def facts(self) -> dict[str, object]:
        """Say every choice and its reason, for people to read."""
        facts: dict[str, object] = {}
        for whose, choice in self.choices():
            facts[f"{whose}_attention"] = choice.backend.name
            facts[f"{whose}_attention_reason"] = choice.reason
        return facts

    def choices(self) -> Iterator[tuple[str, Choice]]:
        """Tell every choice with whose it is."""
        yield "target", self.target
        if self.draft is not None:
            yield "draft", self.draft


def check_attention(boot: EngineBoot, device: torch.device, dtype: torch.dtype | None) -> None:
    """Refuse the target's backend before weights are read, as far as its config tells.

    Raises:
        AttentionUnavailable: the backend that was asked for cannot run.
    """
    config = LlamaConfig.load(Path(boot.model.path))
    known = dtype or config.dtype
    if known is not None:
        _choose(boot, "target", device, known, config.decoder.head_dim)


def choose_attention(boot: EngineBoot, loaded: Loaded) -> Attention:
    """Choose for the target's pool and the draft's, and log why.

    Raises:
        AttentionUnavailable: the backend that was asked for cannot run for one of them.
    """

    def choose(whose: str, head_dim: int) -> Choice:
        return _choose(boot, whose, loaded.device, loaded.dtype, head_dim)

    draft = loaded.draft
    attention = Attention(
        target=choose("target", loaded.target.config.decoder.head_dim),
        draft=None if draft is None else choose("draft", draft.shape.head_dim),
    )
    for whose, choice in attention.choices():
        log.info("attention of the %s: %s (%s)", whose, choice.backend.name, choice.reason)
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
