"""Tokenizers, and servers over real HTTP: on the echo core, and on the real one if it is built."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from specdecode_api.boot import EngineBoot
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.serve.engine.core import Core, LoadedEngine
from specdecode_engine.serve.listeners import Listeners
from specdecode_engine.serve.openai.service import Service
from specdecode_engine.serve.server import SignalledServer
from specdecode_engine.startup.build import build_core
from specdecode_engine.stats.snapshot import CoreSnapshot
from tests.engine.serve.echo_core import EchoCore
from tests.engine.serve.echo_process import EchoProcess

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
EXAMPLES = Path(__file__).parents[3] / "examples" / "models"
SPECIAL = ["<|end|>", "<|turn|>"]
TEXT = [
    "the quick brown fox jumps over the lazy dog and then it sleeps in the warm sun",
    "größer naïve café 北京 😀 emoji, numbers 12345 and STOP words",
]


def byte_level_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT * 10, trainer)
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """The layout of Llama 2: spaces as U+2581, unknown characters as lone bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁the", "▁a", "the", "a", "b", "c", "▁▁", "é", "▁fox", ",", "\n"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    model = models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def metaspace_tokenizer() -> Tokenizer:
    pieces = ["<unk>", "▁", "▁the", "▁a", "the", "a", "b", "▁fox", ",", "é", "▁▁"]
    vocab = [(piece, -float(index)) for index, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=False))
    tokenizer.add_special_tokens(["<unk>"])
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return sentencepiece_tokenizer()


@pytest.fixture(scope="session")
def metaspace() -> Tokenizer:
    return metaspace_tokenizer()


@pytest.fixture(scope="session")
def write_model(byte_level: Tokenizer) -> Callable[..., Path]:
    def write(
        folder: Path, chat_template: str | None = CHAT_TEMPLATE, **generation: object
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        byte_level.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIAL[0],
            "additional_special_tokens": SPECIAL[1:],
            "clean_up_tokenization_spaces": False,
        }
        if chat_template:
            config["chat_template"] = chat_template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "config.json").write_text(json.dumps({"vocab_size": 320}))
        (folder / "generation_config.json").write_text(json.dumps(generation))
        return folder

    return write


@pytest.fixture(scope="session")
def model_folder(
    tmp_path_factory: pytest.TempPathFactory, write_model: Callable[..., Path]
) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "echo")


class RunningServer:
    """A server in a thread of its own; `stop` is what SIGTERM does."""

    def __init__(self, boot: EngineBoot, load: Callable[[ShowProgress], LoadedEngine]) -> None:
        self.loaded: LoadedEngine | None = None
        self.failures: list[Exception] = []
        self._clients: list[openai.OpenAI] = []
        self.exit_code: Future[int] = Future()
        self._boot = boot
        self._load = load
        self.listeners = Listeners.open(boot.server)
        self._made: Future[tuple[Service, asyncio.AbstractEventLoop]] = Future()
        self.address: tuple[str, int] = self.listeners.api.getsockname()
        host, port = self.address
        self.url = f"http://{host}:{port}"
        self.management_url = f"http://{host}:{self.listeners.management_port or port}"
        self.drain_socket = self.listeners.drain.path
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.service, self._loop = self._made.result(10)

    def _run(self) -> None:
        try:
            self.exit_code.set_result(asyncio.run(self._main()))
        except BaseException as error:
            self.exit_code.set_exception(error)

    async def _main(self) -> int:
        service = Service(self._boot, self._keep, on_failure=self.failures.append)
        self._made.set_result((service, asyncio.get_running_loop()))
        try:
            code = await SignalledServer(service, self.listeners).run_until_end()
        finally:
            self.listeners.close()
        assert await service.engine.close(5)
        return code

    def _keep(self, progress: ShowProgress) -> LoadedEngine:
        self.loaded = self._load(progress)
        return self.loaded

    @property
    def core(self) -> Core:
        assert self.loaded is not None
        return self.loaded.core

    @property
    def client(self) -> openai.OpenAI:
        return self.connect(is_strict=True)

    def connect(self, is_strict: bool) -> openai.OpenAI:
        client = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            timeout=30,
            _strict_response_validation=is_strict,
        )
        self._clients.append(client)
        return client

    def snapshot(self) -> CoreSnapshot:
        """The core's figures as of now."""
        taking = self.service.engine.refresh_snapshot()
        return asyncio.run_coroutine_threadsafe(taking, self._loop).result(10)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10)

    def post(self, path: str, **options: object) -> httpx.Response:
        if "content" in options:
            options = {"headers": {"content-type": "application/json"}} | options
        return httpx.post(self.url + path, timeout=30, **options)  # type: ignore[arg-type]

    def wait_ready(self, timeout_s: float = 120) -> "RunningServer":
        wait_until(self._is_ready, timeout_s)
        return self

    def _is_ready(self) -> bool:
        return httpx.get(self.management_url + "/ready", timeout=10).status_code == 200

    def stop(self) -> None:
        with suppress(RuntimeError):  # the loop may have ended already
            self._loop.call_soon_threadsafe(self.service.lifecycle.stop)

    def close(self) -> None:
        self.stop()
        self.stop()
        self.thread.join(20)
        for client in self._clients:
            client.close()
        assert not self.thread.is_alive()


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    ended = threading.Event()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return
        ended.wait(0.01)
    raise AssertionError("it did not happen in time")


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    return wait_until


def echo_boot(folder: Path, **server: object) -> EngineBoot:
    return EngineBoot.model_validate(
        {
            "model": {"path": str(folder), "served_name": "echo"},
            "scheduling": {"max_running_requests": 16, "max_queued_requests": 48},
            "server": {"host": "127.0.0.1", "port": 0, "management_port": 0, **server},
        }
    )


@pytest.fixture
def start_server(model_folder: Path) -> Iterator[Callable[..., RunningServer]]:
    """Start servers on echo cores; all are ended with the test."""
    running: list[RunningServer] = []

    def start(
        load: Callable[[ShowProgress], LoadedEngine] | None = None,
        folder: Path = model_folder,
        drain_seconds: float = 10.0,
        is_ready: bool = True,
        api_key_path: Path | None = None,
        owner: str | None = None,
        management_port: int = 0,
        options: Mapping[str, object] = MappingProxyType({}),
        **core: object,
    ) -> RunningServer:
        keys = {} if api_key_path is None else {"api_key_path": str(api_key_path), "owner": owner}
        boot = echo_boot(
            folder, drain_seconds=drain_seconds, management_port=management_port, **keys, **options
        )
        server = RunningServer(
            boot,
            load or (lambda progress: LoadedEngine(EchoCore(**core), folder)),  # type: ignore[arg-type]
        )
        running.append(server)
        return server.wait_ready() if is_ready else server

    yield start
    for server in running:
        server.close()


@pytest.fixture
def start_process(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., EchoProcess]]:
    """Start processes on echo cores, with drain sockets of their own; they end with the test."""
    running: list[EchoProcess] = []

    def start(
        step_seconds: float = 0.05,
        environment: Mapping[str, str] = MappingProxyType({}),
        is_ready: bool = True,
        **server: Any,
    ) -> EchoProcess:
        folders = {"XDG_RUNTIME_DIR": str(tmp_path)}
        engine = EchoProcess(model_folder, {**folders, **environment}, step_seconds, **server)
        running.append(engine)
        if is_ready:
            engine.read_port()
            wait_until(engine.is_ready, 60)
        return engine

    yield start
    for engine in running:
        engine.close()


@pytest.fixture
def free_port() -> int:
    """A port of the loopback address that nothing uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def real_server(
    speculation: dict[str, object],
    *,
    context_length: int = 256,
    folder: Path = EXAMPLES / "target",
    return_routed_experts: bool = False,
    adapters: Mapping[str, str] = MappingProxyType({}),
    **server: object,
) -> RunningServer:
    boot = EngineBoot.model_validate(
        {
            "model": {
                "path": str(folder),
                "served_name": "echo",
                "dtype": "float32",
                "context_length": context_length,
                "return_routed_experts": return_routed_experts,
            },
            "scheduling": {"max_running_requests": 16, "max_queued_requests": 48},
            "speculation": speculation,
            "adapters": {"modules": dict(adapters)},
            "memory": {"kv_cache_bytes": 64 * 2**20},
            "device": "cpu",
            "threads": 1,
            "server": {"host": "127.0.0.1", "port": 0, "management_port": 0, **server},
        }
    )

    def load(progress: ShowProgress) -> LoadedEngine:
        core = build_core(boot)
        change = core.change_adapters
        return LoadedEngine(core, folder, core.facts, change_adapters=change)

    return RunningServer(boot, load)


@pytest.fixture(scope="session")
def echo_server(model_folder: Path) -> Iterator[RunningServer]:
    """One echo server for every test that leaves it as it was."""
    core = EchoCore(context_length=512, eos_token_ids=[0])
    running = RunningServer(
        echo_boot(model_folder), lambda progress: LoadedEngine(core, model_folder)
    )
    yield running.wait_ready()
    running.close()


@pytest.fixture(scope="session")
def built_server() -> Iterator[RunningServer]:
    """One server on the real core."""
    running = real_server({})
    yield running.wait_ready()
    running.close()


@pytest.fixture(scope="session")
def drafting_server() -> Iterator[RunningServer]:
    """One server on the real core with a draft."""
    draft = str(EXAMPLES / "draft")
    running = real_server({"algorithm": "STANDALONE", "draft_path": draft, "num_steps": 3})
    yield running.wait_ready()
    running.close()


@pytest.fixture(params=["echo_server", "built_server"])
def server(request: pytest.FixtureRequest) -> RunningServer:
    """Each core in turn."""
    running = request.getfixturevalue(request.param)
    assert isinstance(running, RunningServer)
    return running
