"""Reads a draft that is to replace the running one, next to it, while the engine serves."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specdecode_engine.adaptive.policy import DraftRefused
from specdecode_engine.model.config_file import CheckpointError
from specdecode_engine.model.draft_exchange import StagedDraft, check_same_config
from specdecode_engine.model.language_model import LanguageModel
from specdecode_engine.model.layers import Linears
from specdecode_engine.startup.config import EngineConfig
from specdecode_engine.startup.draft_methods.method import LoadedDraft
from specdecode_engine.startup.draft_methods.registry import (
    LoadModel,
    load_draft,
    read_checked_draft,
)


@dataclass(frozen=True, slots=True, eq=False)
class DraftStaging:
    """Makes staged drafts for one engine.

    Args:
        load_with: returns what loads a language model with its linear maps.
        install: copies a staged draft, between two steps.
    """

    config: EngineConfig
    target: LanguageModel
    network: LoadedDraft | None
    load_with: Callable[[Linears], LoadModel]
    install: Callable[[StagedDraft], None]

    def __call__(self, folder: Path) -> Callable[[], None]:
        """Read and verify a draft; see `StageDraft`."""
        staged = self._stage(folder)
        return lambda: self.install(staged)

    def _stage(self, folder: Path) -> StagedDraft:
        config, network = self.config, self.network
        if config.draft is None or network is None:
            algorithm = config.boot.speculation.algorithm.value
            raise DraftRefused(f"algorithm {algorithm} has no draft model that could be exchanged")
        if config.device.type != "cpu":
            raise DraftRefused(
                f"drafts are exchanged on a CPU only, and the engine runs on {config.device}; "
                "replace the pod"
            )
        speculation = config.boot.speculation.model_copy(update={"draft_path": str(folder)})
        boot = config.boot.model_copy(update={"speculation": speculation})
        try:
            draft = read_checked_draft(boot, config.target)
            assert draft is not None, "the algorithm has a draft"
            check_same_config(config.draft, draft, folder)
            linears = Linears.of(config.kernels["target"])
            new = load_draft(boot, draft, self.target, self.load_with(linears), linears)
        except (CheckpointError, OSError) as error:
            raise DraftRefused(f"{error}; the running draft stays") from error
        return StagedDraft.compare(network, new, self.target, folder)
