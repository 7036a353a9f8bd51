"""What every route works with: the boot file, the engine, its text side, state and metrics."""

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from fastapi import Request

from specdecode_api.boot import EngineBoot
from specdecode_engine.metrics import EngineMetrics
from specdecode_engine.serve.admission import Limits
from specdecode_engine.serve.api_keys import ApiKeys, read_digests
from specdecode_engine.serve.async_engine import AsyncEngine
from specdecode_engine.serve.core import Core, LoadedEngine, Progress
from specdecode_engine.serve.grammars import Grammars
from specdecode_engine.serve.lifecycle import Lifecycle
from specdecode_engine.serve.table_watch import Reread, TableWatch
from specdecode_engine.serve.tables import Tables
from specdecode_engine.serve.text_model import TextModel, load_text_model

STUCK_SECONDS = 300.0

Load = Callable[[Progress], LoadedEngine]
Failed = Callable[[Exception], None]


class Service:
    """One engine behind one server. Made on the event loop it will live on.

    Args:
        boot: the whole boot file.
        load: builds the engine, on the engine's thread.
        reread: reads the configuration anew, to take up a changed table.
        stuck_seconds: a step that takes longer counts as dead.
        clock: seconds, monotonic.
        on_failure: told why the engine did not load or cannot go on.

    Raises:
        NoApiKeys: when the boot file asks for keys and there is none.
    """

    def __init__(
        self,
        boot: EngineBoot,
        load: Load,
        reread: Reread | None = None,
        stuck_seconds: float = STUCK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        on_failure: Failed = lambda error: None,
    ) -> None:
        self.boot = boot
        self.keys = _keys(boot)
        self.clock = clock
        self.created = int(time.time())
        self.lifecycle = Lifecycle()
        self._load = load
        self._tell_failure = on_failure
        self._stuck_seconds = stuck_seconds
        self._text: TextModel | None = None
        self._facts: Mapping[str, object] = {}
        self._eos_token_ids: frozenset[int] = frozenset()
        self.grammars = Grammars(lambda: self.text.token_bytes(self._eos_token_ids))
        self.engine = AsyncEngine(
            self._load_all,
            on_ready=self.lifecycle.load,
            on_failure=self._fail,
            clock=clock,
        )
        self.metrics = EngineMetrics(lambda: self.engine.snapshot, self.describe)
        self.tables = Tables(boot.speculation, self.engine.reload, self.metrics.count_table)
        self.watch = TableWatch(boot, reread, self.tables) if reread else None

    @property
    def served_name(self) -> str:
        """The name that clients call the model by."""
        return self.boot.model.served_name or Path(self.boot.model.path).name

    @property
    def text(self) -> TextModel:
        """The text side; only calls that were admitted may ask."""
        assert self._text is not None, "the engine is not loaded"
        return self._text

    @property
    def facts(self) -> Mapping[str, object]:
        """What the engine said about itself when it was loaded."""
        return self._facts

    def describe(self) -> Mapping[str, str]:
        """What this engine runs, by the labels of `series.INFO`."""
        boot, speculation = self.boot, self.boot.speculation
        return {
            "config_hash": boot.config_hash,
            "table_hash": self.tables.table_hash,
            "version": version("specdecode-engine"),
            "model": boot.model.path,
            "draft": speculation.draft_path or "",
            "algorithm": speculation.algorithm.value,
            "policy": speculation.policy.value,
            "topk": str(speculation.topk),
            "page_size": str(boot.memory.page_size),
            "device": str(self._facts.get("device_name", "")),
            "dtype": str(self._facts.get("dtype", "")),
        }

    @property
    def limits(self) -> Limits:
        """What one call may ask for."""
        scheduling = self.boot.scheduling
        return Limits(
            served_name=self.served_name,
            context_length=self.engine.context_length,
            vocab_size=self.text.vocab_size,
            max_sequences=scheduling.max_running_requests + scheduling.max_queued_requests,
        )

    def dead_reason(self) -> str | None:
        """Say why the process should be restarted, or None while it lives."""
        if not self.engine.is_alive():
            return "the engine thread has ended"
        step_s = self.engine.step_seconds()
        if step_s > self._stuck_seconds:
            return f"a step has been running for {step_s:.0f} s"
        return None

    def _fail(self, error: Exception) -> None:
        self._tell_failure(error)
        self.lifecycle.fail(str(error))

    def _load_all(self) -> Core:
        loaded = self._load(self._note_progress)
        self._note_progress("tokenizer")
        self._text = load_text_model(loaded.model_folder)
        self.tables.start(loaded.core)
        self._facts = loaded.facts
        self._eos_token_ids = loaded.core.eos_token_ids
        return loaded.core

    def _note_progress(self, words: str) -> None:
        self.lifecycle.progress = words


def _keys(boot: EngineBoot) -> ApiKeys | None:
    if boot.server.api_key_path is None:
        return None
    path = Path(boot.server.api_key_path)
    return ApiKeys(path, read_digests(path))


def service_of(request: Request) -> Service:
    """Return the service that a request came to."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
