"""The state that all routes share: boot file, engine, text processing, lifecycle and metrics."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fastapi import Request

from specdecode_api.boot import EngineBoot
from specdecode_api.report import StartProgress
from specdecode_engine.process import STARTED_S, StepTimedOut, termination_message_for
from specdecode_engine.serve import VERSION, errors
from specdecode_engine.serve.control.adapters import Adapters
from specdecode_engine.serve.control.drafts import Drafts
from specdecode_engine.serve.control.ready_line import ReadyEngine, kv_tokens
from specdecode_engine.serve.control.response_store import ResponseStore
from specdecode_engine.serve.control.resume_id import ResumeId
from specdecode_engine.serve.control.router_tokens import RouterTokens
from specdecode_engine.serve.control.tables import ReadBoot, Tables, TableWatch
from specdecode_engine.serve.engine.async_engine import AsyncEngine
from specdecode_engine.serve.engine.core import Load
from specdecode_engine.serve.engine.engine_host import in_thread
from specdecode_engine.serve.engine.messages import Connect, Started
from specdecode_engine.serve.openai.ignored_fields import IgnoredFields
from specdecode_engine.serve.openai.stop_tokens import StopTokens, read_stop_tokens
from specdecode_engine.serve.openai.tracing import start_tracing
from specdecode_engine.serve.parsers.formats import MessageFormats, resolve_formats
from specdecode_engine.serve.text.grammars import Grammars
from specdecode_engine.serve.text.loading import load_text_model
from specdecode_engine.serve.text.tokenizer import TextProcessor
from specdecode_engine.stats.prometheus import EngineMetrics
from specdecode_engine.stats.recent_rates import RecentRates
from specdecode_engine.stats.snapshot import CoreSnapshot
from specdecode_server.api_keys import ApiKeyStore, Digests
from specdecode_server.body import DEFAULT_MAX_BODY_BYTES
from specdecode_server.lifecycle import ServerLifecycle

log = logging.getLogger(__name__)

OnFailure = Callable[[Exception], None]


class Service:
    """One engine and its server. Created on the event loop that it lives on.

    Args:
        load: builds the engine, on the engine's thread.
        connect: reaches an engine elsewhere, instead.
        api_keys: of keys that clients may send, next to those of the boot file's file.
        reread: reads the configuration again, to apply a changed table.
        on_failure: called with the error that ends the engine.
        on_loaded: called after everything is loaded, before any request.

    Raises:
        NoApiKeys: the boot file names a file of keys, and no key can be read from it.
        TracingUnavailable: spans are to be sent, and the package for it is not installed.
    """

    def __init__(
        self,
        boot: EngineBoot,
        load: Load,
        reread: ReadBoot | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_failure: OnFailure = lambda error: None,
        on_loaded: Callable[[], None] = lambda: None,
        connect: Connect | None = None,
        api_keys: Digests = frozenset(),
    ) -> None:
        self.boot = boot
        key_path = None if boot.server.api_key_path is None else Path(boot.server.api_key_path)
        self.keys = ApiKeyStore(key_path, api_keys) if key_path or api_keys else None
        token_path = boot.server.router_token_path
        self.router_tokens = None if token_path is None else RouterTokens(Path(token_path))
        self.api_port = boot.server.port
        store_bytes = boot.server.response_store_bytes
        self.responses = None if store_bytes is None else ResponseStore(store_bytes, clock)
        self.clock = clock
        self.created = int(time.time())
        self.lifecycle = ServerLifecycle()
        self.start_progress: StartProgress | None = None
        self._on_failure = on_failure
        self._on_loaded = on_loaded
        self._is_step_late = False
        self._began_s = STARTED_S
        self._text: TextProcessor | None = None
        self.formats = MessageFormats()
        self.facts: Mapping[str, object] = {}
        self.stop_tokens = StopTokens()  # none until the engine is loaded
        self.resume_id = ResumeId()
        self.grammars = Grammars()
        self.engine = AsyncEngine(
            connect or in_thread(load, clock),
            self._prepare,
            on_failure=self._fail,
            on_progress=self._note_progress,
            on_lost=self._restart,
            on_resumed=lambda number: self.metrics.count_resumed(number),
            clock=clock,
        )
        self.tracing = start_tracing(boot.server.tracing_endpoint, clock)
        self.metrics = EngineMetrics(lambda: self.engine.snapshot, self.describe, self._stored)
        self.rates = RecentRates()
        unused = frozenset(() if boot.scheduling.priority else ("priority",))
        self.ignored_fields = IgnoredFields(self.metrics.count_ignored_fields, unused)
        self.tables = Tables(boot.speculation, self.engine.reload, self.metrics.count_table)
        self.drafts = Drafts(boot, self.engine.exchange_draft, self.metrics.count_draft)
        self.adapters = Adapters(boot, self.engine, self.resume_id.note_adapters)
        self.watch = TableWatch(boot, reread, self.tables, self.drafts) if reread else None

    @property
    def served_name(self) -> str:
        return self.boot.served_name

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """The LoRA adapters that requests may choose from."""
        return tuple(self.adapters.paths)

    def adapter_of(self, model: str | None, lora_path: str | None = None) -> str:
        """Return the adapter that a request names, empty for the model without one.

        `model` is the name of the model, that of an adapter, or both with a colon between;
        `lora_path` is the name of an adapter, as in SGLang. Whole names come first: that of the
        model may have colons.

        Raises:
            HttpError: 404 with the names that are served; 400 if the two name different adapters.
        """
        adapter = self._adapter_in(model)
        if lora_path is None:
            return adapter
        if lora_path not in self.adapters.paths:
            raise errors.model_not_found(lora_path, self.adapter_names, "lora_path")
        if adapter not in ("", lora_path):
            message = (
                f"lora_path is {lora_path!r}, and model names the adapter {adapter!r}; remove one"
            )
            raise errors.invalid("lora_path", message)
        return lora_path

    def _adapter_in(self, model: str | None) -> str:
        base, modules = self.served_name, self.adapters.paths
        if model is None or model == base:
            return ""
        if model in modules:
            return model
        adapter = model.removeprefix(f"{base}:")
        if adapter != model and adapter in modules:
            return adapter
        raise errors.model_not_found(model, (base, *modules))

    @property
    def text(self) -> TextProcessor:
        """Tokenizer, chat template and sampling defaults; available once the engine is loaded."""
        assert self._text is not None, "the engine is not loaded"
        return self._text

    @property
    def routed_token_bytes(self) -> int:
        """Bytes of the ids of the experts of one token; 0 where they are not kept."""
        kept = self.facts.get("routed_experts")
        return int(kept["token_bytes"]) if isinstance(kept, Mapping) else 0

    def describe(self) -> Mapping[str, str]:
        """The configuration of this engine, by the labels of `metrics.INFO`."""
        boot, speculation = self.boot, self.boot.speculation
        return {
            "config_hash": self.drafts.config_hash,
            "table_hash": self.tables.table_hash,
            "version": VERSION,
            "model": boot.model.path,
            "draft": self.drafts.path or "",
            "algorithm": speculation.algorithm.value,
            "policy": speculation.policy.value,
            "topk": str(speculation.topk),
            "page_size": str(boot.memory.page_size),
            "device": str(self.facts.get("device_name", "")),
            "dtype": str(self.facts.get("dtype", "")),
        }

    @property
    def max_sequences(self) -> int:
        """The most sequences of one HTTP request: as many as can run and wait."""
        return self.boot.scheduling.max_running_requests + self.boot.scheduling.max_queued_requests

    @property
    def max_body_bytes(self) -> int:
        """The largest body of a request for text; available once the engine is loaded."""
        longest, most = self.text.longest_token_bytes, self.boot.server.max_body_bytes
        return max_body_bytes(self.engine.context_length, longest, most)

    def _stored(self) -> tuple[int, int]:
        """Return the number of stored responses and their bytes."""
        store = self.responses
        return (0, 0) if store is None else (len(store), store.num_bytes)

    async def refresh_keys(self) -> None:
        """Read the API keys again; what belongs to a key that was removed is forgotten."""
        if self.keys is None:
            return
        await self.keys.refresh()
        if self.responses is not None:
            self.responses.keep_owners(self.keys.digests)

    async def expire_responses(self) -> None:
        """Forget stored responses that are too old."""
        if self.responses is not None:
            self.responses.expire()

    async def sample_rates(self) -> None:
        """Add the latest totals of the core to the recent rates."""
        self.rates.add(self.clock(), self.engine.snapshot)

    def dead_reason(self) -> str | None:
        """Return why the process should be restarted, or None while it is alive."""
        if not self.engine.is_alive():
            return self.lifecycle.failure or "the engine thread has ended"
        step_s, limit_s = self.engine.step_seconds(), self.boot.server.step_timeout_seconds
        was_late, self._is_step_late = self._is_step_late, 0 < limit_s < step_s
        if not self._is_step_late:
            return None
        reason = (
            f"a step has been running for {step_s:.0f} s; the limit is {limit_s:g} s "
            f"(lifecycle.stepTimeout, --watchdog-timeout); {self.engine.latest_step()}"
        )
        if self.engine.restart(StepTimedOut(reason)):
            return None
        if not was_late:
            log.error("the liveness probe fails: %s", reason)
            self.metrics.count_failure(StepTimedOut.reason)
        return reason

    def fail_if_late(self) -> None:
        """End the process with an error if its current step takes longer than it may."""
        if (reason := self.dead_reason()) and self._is_step_late:
            self.engine.fail(StepTimedOut(reason))

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, StepTimedOut):
            self.metrics.count_failure(termination_message_for(error).reason)
        self._on_failure(error)
        self.lifecycle.fail(str(error))

    def _restart(self, error: Exception) -> None:
        self._began_s = self.clock()
        self.metrics.restart()
        self.metrics.count_failure(termination_message_for(error).reason)
        self.lifecycle.restart()

    async def _prepare(self, engine: Started) -> None:
        """Load what the server needs, once, and what an engine that has started needs of it."""
        is_first = self._text is None
        self.facts = engine.facts
        if is_first:
            await self._load_text(engine)
        ends = self.stop_tokens.ids(in_chat=True)
        tokens = await asyncio.to_thread(self.text.token_bytes, ends)
        if is_first:
            self.grammars.prepare(tokens)
        if tokens.refusal is None:
            await self.engine.prepare_grammars(tokens)
        await self.tables.start(engine.table, self.engine.prepare_table)
        await self.drafts.start(self.engine.prepare_draft)
        await self.adapters.start(self.facts.get("adapters"))
        self._on_loaded()
        self.lifecycle.load()
        ready = self._ready_engine(engine.snapshot)
        for line in ready.lines(self.clock() - self._began_s):
            log.info("%s", line)

    def _ready_engine(self, snapshot: CoreSnapshot) -> ReadyEngine:
        return ReadyEngine(
            host=self.boot.server.host,
            port=self.api_port,
            model=self.served_name,
            kv_tokens=kv_tokens(snapshot),
            algorithm=self.boot.speculation.algorithm,
            max_steps=self.tables.max_steps,
            needs_key=self.keys is not None,
        )

    async def _load_text(self, engine: Started) -> None:
        self._note_progress(StartProgress(stage="tokenizer"))
        self._text = await asyncio.to_thread(load_text_model, engine.model_folder)
        self.formats = resolve_formats(
            self._text.chat_template, self.boot.server, self._text.vocabulary.added_tokens
        )
        known = engine.model_folder, engine.eos_token_ids, self._text, self.formats
        self.stop_tokens = await asyncio.to_thread(read_stop_tokens, *known)
        self.resume_id.prepare(engine.model_folder, engine.facts, self._answer_options())

    def _answer_options(self) -> Mapping[str, object]:
        """Options of the server that the text of responses depends on."""
        server = self.boot.server
        return {
            "served_name": self.served_name,
            "tool_parser": server.tool_parser,
            "reasoning_parser": server.reasoning_parser,
        }

    def _note_progress(self, progress: StartProgress) -> None:
        self.start_progress = progress
        if progress.total is None:  # clients see it: a count has the name of a folder
            self.lifecycle.progress = progress.stage


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


BASE_BODY_BYTES = 64 * 2**10
BYTES_PER_PROMPT_BYTE = 8


def max_body_bytes(context_length: int, longest_token_bytes: int, most: int | None) -> int:
    """Return the limit on a body: what a prompt that fills the context may need.

    It is at most `most`, by default 4 MiB.

    `64 KiB + 8 x context length x longest token in bytes`: JSON writes a byte of text in up to
    6 bytes, and the other fields and messages have room.
    """
    longest_prompt_bytes = context_length * longest_token_bytes
    derived = BASE_BODY_BYTES + BYTES_PER_PROMPT_BYTE * longest_prompt_bytes
    return min(derived, DEFAULT_MAX_BODY_BYTES if most is None else most)
