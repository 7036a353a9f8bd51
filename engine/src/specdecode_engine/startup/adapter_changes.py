"""Loads and unloads LoRA adapters of an engine while it serves."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from specdecode_engine.batch.adapters import AdapterFacts, AdapterRefused
from specdecode_engine.model.adapters.loading import LoadedAdapters
from specdecode_engine.model.checkpoint.adapters.adapter import adapter_digest
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.schedule.scheduler import Scheduler


@dataclass(frozen=True, slots=True, eq=False)
class AdapterChanges:
    """Changes the adapters of one engine; see `ChangeAdapters`."""

    loaded: LoadedAdapters
    scheduler: Scheduler

    def stage(self, name: str, folder: Path) -> Callable[[], AdapterFacts]:
        """Read an adapter, unless it is loaded already."""
        try:
            return self._stage(name, folder)
        except CheckpointError as error:
            raise AdapterRefused(str(error)) from None

    def remove(self, name: str) -> bool:
        """Release an adapter, unless a request has it; one that is not loaded is gone."""
        if self._is_used(name):
            return False
        if name in self.loaded.slots:
            self.loaded.remove(name)
            self.scheduler.adapter_digests = self.loaded.digests
        return True

    def _is_used(self, name: str) -> bool:
        """Whether a running or waiting request has an adapter."""
        scheduler = self.scheduler
        known = chain(scheduler.running, scheduler.waiting, scheduler.suspended.values())
        return any(one.request.adapter == name for one in known)

    def _stage(self, name: str, folder: Path) -> Callable[[], AdapterFacts]:
        loaded = self.loaded
        if (known := loaded.adapters.get(name)) is not None:
            if adapter_digest(folder) == known.digest:
                return lambda: known.facts
            message = (
                f"{name} is loaded, with other content ({known.facts['path']}); unload it first"
            )
            raise AdapterRefused(message, is_conflict=True)
        if loaded.is_full:
            names = ", ".join(sorted(loaded.slots))
            message = (
                f"{loaded.num_slots} adapters are loaded ({names}), and there is no memory for "
                "another; unload one first, or start the engine with a higher --max-loras"
            )
            raise AdapterRefused(message, is_conflict=True)
        read = loaded.read(name, folder)

        def add() -> AdapterFacts:
            loaded.add(read)
            self.scheduler.adapter_digests = loaded.digests
            return read.facts

        return add
