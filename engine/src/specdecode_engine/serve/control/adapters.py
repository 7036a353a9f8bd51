"""The LoRA adapters that requests may choose, loaded and unloaded while the engine serves."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Protocol

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.adapters import AdapterFacts, AdapterRefused
from specdecode_engine.serve.engine.core import EngineFailed

log = logging.getLogger(__name__)

FILES = ("adapter_config.json", "adapter_model.safetensors")
SHOWN_PATH_CHARS = 200


class AdapterEngine(Protocol):
    """What is asked of the engine; see `AsyncEngine`."""

    async def load_adapter(
        self, name: str, folder: Path, *, is_preparation: bool = False
    ) -> AdapterFacts: ...

    async def unload_adapter(self, name: str, *, is_preparation: bool = False) -> None: ...


class Adapters:
    """Loads adapters one at a time; one that is refused changes nothing.

    Owned by the event loop.

    Args:
        boot: the configuration at start.
        on_change: called after each change, with the facts of all that requests may choose.
    """

    def __init__(
        self,
        boot: EngineBoot,
        engine: AdapterEngine,
        on_change: Callable[[Iterable[AdapterFacts]], None],
    ) -> None:
        self._root = None if boot.adapters.root is None else Path(boot.adapters.root)
        self._served_name = boot.served_name
        self._engine = engine
        self._on_change = on_change
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Exception | None]] = set()
        self._leaving: dict[str, asyncio.Task[Exception | None]] = {}
        self._loaded: dict[str, AdapterFacts] | None = None  # None until an engine has started
        self.paths: dict[str, str] = dict(boot.adapters.modules)
        """Folders by name of what requests may choose."""

    @property
    def can_change(self) -> bool:
        """Whether adapters may be loaded and unloaded."""
        return self._root is not None

    @property
    def facts(self) -> list[AdapterFacts]:
        """What is known of each adapter that requests may choose."""
        loaded = self._loaded or {}
        return [loaded[name] for name in self.paths if name in loaded]

    async def start(self, facts: object) -> None:
        """Take what an engine loaded at its start; bring one that started again up to date.

        Args:
            facts: of its adapters.
        """
        found = facts if isinstance(facts, list) else []
        started: dict[str, AdapterFacts] = {str(one["name"]): one for one in found}
        if self._loaded is None:
            self._loaded = started
        else:
            await self._restore(started, self._loaded)
        self._on_change(self.facts)

    async def load(self, name: str, path: str) -> None:
        """Let requests choose another adapter; a cancelled caller does not end it.

        No effect if it is loaded with the same content.

        Raises:
            AdapterRefused: it cannot be loaded.
            EngineFailed: the engine has failed.
        """
        await _result_of(self._begin(self._add(name, path)))

    async def unload(self, name: str) -> None:
        """Let no new request choose an adapter, and release it once none has it.

        A cancelled caller does not end it.

        Raises:
            KeyError: there is none of this name.
            EngineFailed: the engine has failed.
        """
        if name not in self._leaving:
            del self.paths[name]
            self._leaving[name] = self._begin(self._remove(name))
            self._on_change(self.facts)
        await _result_of(self._leaving[name])

    def _begin(
        self, work: Coroutine[None, None, Exception | None]
    ) -> asyncio.Task[Exception | None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _restore(
        self, started: dict[str, AdapterFacts], loaded: dict[str, AdapterFacts]
    ) -> None:
        """Give an engine that started again what the one before it had, before any request."""
        for name, facts in started.items():
            if name not in loaded or loaded[name]["sha256"] != facts["sha256"]:
                await self._engine.unload_adapter(name, is_preparation=True)
        for name, known in tuple(loaded.items()):
            if name in started and started[name]["sha256"] == known["sha256"]:
                continue
            try:
                await self._reload(name, known)
            except AdapterRefused as error:
                log.error("the adapter %s is no longer served: %s", name, error)
                del loaded[name]
                self.paths.pop(name, None)

    async def _reload(self, name: str, known: AdapterFacts) -> None:
        folder = Path(str(known["path"]))
        facts = await self._engine.load_adapter(name, folder, is_preparation=True)
        if facts["sha256"] != known["sha256"]:
            await self._engine.unload_adapter(name, is_preparation=True)
            raise AdapterRefused(f"{folder} has changed since it was loaded; load it again")

    async def _add(self, name: str, path: str) -> Exception | None:
        async with self._changing:
            try:
                self._check_name(name)
                folder = await asyncio.to_thread(self._folder_of, path)
                facts = await self._engine.load_adapter(name, folder)
                self._check_name(name)
            except (AdapterRefused, EngineFailed) as error:
                return error
            assert self._loaded is not None
            if name not in self.paths:
                self._loaded[name], self.paths[name] = facts, str(facts["path"])
                self._on_change(self.facts)
                log.info("the adapter %s of %s is loaded", name, facts["path"])
            return None

    async def _remove(self, name: str) -> Exception | None:
        try:
            async with self._changing:
                pass  # a load of the same name that has begun finds that it is being unloaded
            await self._engine.unload_adapter(name)
        except EngineFailed as error:
            return error
        finally:
            del self._leaving[name]
        assert self._loaded is not None
        self._loaded.pop(name, None)
        log.info("the adapter %s is unloaded", name)
        return None

    def _check_name(self, name: str) -> None:
        if name == self._served_name:
            raise AdapterRefused(f"lora_name: {name} is the name of the model; choose another")
        if name in self._leaving:
            message = f"{name} is being unloaded; try again when its requests have ended"
            raise AdapterRefused(message, is_conflict=True)

    def _folder_of(self, path: str) -> Path:
        """Return the folder of an adapter below the root, links resolved; nothing is read."""
        assert self._root is not None
        refused = AdapterRefused(
            f"lora_path {path[:SHOWN_PATH_CHARS]!r} is not the folder of an adapter below "
            f"--lora-root (with {' and '.join(FILES)}); give its path, absolute or relative to it"
        )
        try:
            root = self._root.resolve(strict=True)
            folder = (root / path).resolve(strict=True)
            files = [(folder / name).resolve() for name in FILES]
            is_below = all(one.is_relative_to(root) for one in (folder, *files))
            if folder == root or not is_below or not folder.is_dir():
                raise refused
        except (OSError, ValueError, RuntimeError):
            raise refused from None
        return folder


async def _result_of(task: asyncio.Task[Exception | None]) -> None:
    error = await asyncio.shield(task)
    if error is not None:
        raise error
