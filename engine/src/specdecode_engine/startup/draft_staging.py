"""Reads a draft that is to replace the running one, while the engine serves.

It is read into memory of the host. On a CPU that is the engine's, which plans for it; a GPU never
holds two drafts.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.policy import DraftRefused
from specdecode_engine.model.checkpoint.checkpoint import OpenStore, SharedTensorError
from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.drafts.draft_exchange import StagedDraft, check_same_config
from specdecode_engine.model.drafts.draft_head import HiddenStateHead
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.startup.config import EngineConfig
from specdecode_engine.startup.draft_methods.method import LoadedDraft
from specdecode_engine.startup.draft_methods.registry import load_draft, read_checked_draft
from specdecode_engine.startup.models import LoadedModels, model_loader
from specdecode_kernels import TORCH, AnyWeight, Choice

log = logging.getLogger(__name__)

HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class DraftStaging:
    """Makes staged drafts for one engine.

    Args:
        open_store: opens the tensors of a STANDALONE draft, as at start.
        begin: called before the first piece of a draft is copied.
        finish: called after the last one.
    """

    config: EngineConfig
    models: LoadedModels
    open_store: OpenStore | None
    begin: Callable[[], None]
    finish: Callable[[], None]

    def __call__(self, folder: Path) -> Iterator[Callable[[], None]]:
        """Read and verify a draft; see `StageDraft`."""
        with _stream_of_its_own(self.config.device):
            staged = self._stage(folder)
        return chain((self.begin,), staged.pieces(), (self.finish,))

    def _stage(self, folder: Path) -> StagedDraft:
        config, network = self.config, self.models.draft
        if config.ranks.size > 1:
            message = "the ranks of an engine load a draft at start alone; replace the pod"
            raise DraftRefused(message, needs_restart=True)
        if config.draft is None or network is None:
            algorithm = config.boot.speculation.algorithm.value
            message = f"algorithm {algorithm} has no draft model that could be exchanged"
            raise DraftRefused(message, needs_restart=True)
        _check_is_checkpoint(folder)
        speculation = config.boot.speculation.model_copy(update={"draft_path": str(folder)})
        boot = config.boot.model_copy(update={"speculation": speculation})
        try:
            draft = read_checked_draft(boot, config.target)
            assert draft is not None, "the algorithm has a draft"
            draft = config.method.used_part(draft, config.sizes.max_steps)
            check_same_config(config.draft, draft, folder)
            new = self._load(boot, draft)
        except (CheckpointError, OSError) as error:
            needs_restart = isinstance(error, SharedTensorError)
            message = f"{error}; the running draft stays"
            raise DraftRefused(message, needs_restart=needs_restart) from error
        return StagedDraft.compare(network, new, self.models.target, folder)

    def _load(self, boot: EngineBoot, draft: DraftConfig) -> LoadedDraft | None:
        """Load a draft on the host, in the order in which the running one has its weights."""
        is_packed = self.config.device == HOST
        quantization = self.config.boot.model.quantization
        kernels = self.config.kernels["target"] if is_packed else Choice(TORCH, "", "on the host")
        linears = Linears.of(kernels, quantization)
        load_model = model_loader(self.config, HOST, self.open_store, linears)
        return load_draft(
            boot,
            draft,
            self.models.target,
            load_model,
            linears,
            device=HOST,
            must_share=self._shared_weights(),
        )

    def _shared_weights(self) -> tuple[AnyWeight, ...]:
        """Return the weights of the target that the running head uses."""
        target, network, *_ = self.models
        if not isinstance(network, HiddenStateHead):
            return ()
        pairs = (network.embedding, target.embedding), (network.head.weight, target.head.weight)
        return tuple(own for own, targets in pairs if own is targets)


def _check_is_checkpoint(folder: Path) -> None:
    """Refuse all folders without a readable config.json alike; the log has the reason.

    Else whoever may exchange drafts could search the files of the pod.
    """
    try:
        ConfigFile.open(folder / "config.json")
    except (CheckpointError, OSError, ValueError) as error:
        log.warning("draft refused: %s", error)
        raise DraftRefused(
            f"{folder}: is not a folder with a checkpoint that the engine can read; the running "
            "draft stays; the engine's log has the reason"
        ) from None


@contextmanager
def _stream_of_its_own(device: torch.device) -> Iterator[None]:
    """Let reading the target's weights on a GPU delay no step."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        yield
