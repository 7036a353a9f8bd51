"""How each engine's own server is started: with the settings that it has in process."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.gpu.peers.cells import Engine, Mode
from bench.gpu.peers.engines import sglang_engine, vllm_engine
from bench.gpu.peers.jobs.job_process import Setup

WITHOUT_TOKENIZER = "skip_tokenizer_init"
"""A server has its tokenizer: it decodes what it emits."""


@contextmanager
def server_folder() -> Iterator[Path]:
    """Yield a folder for what a server reads while it starts."""
    with tempfile.TemporaryDirectory(prefix="bench-peers-server-") as folder:
        yield Path(folder)


def server_command(engine: Engine, setup: Setup, port: int, folder: Path) -> list[str]:
    """Return the arguments of Python that start a server on a port of this machine.

    Args:
        folder: gets the files that the server reads.
    """
    mode, where = Mode(setup.cells[0]["mode"]), ["--host", "127.0.0.1", "--port", str(port)]
    if engine is Engine.VLLM:
        settings = vllm_engine.engine_arguments(setup, mode)
        model = settings.pop("model")
        program = ["-m", "vllm.entrypoints.cli.main", "serve", model]
        return [*program, *where, *flags_of(settings)]
    if engine is Engine.SGLANG:
        settings = sglang_engine.engine_arguments(setup, mode)
        return ["-m", "sglang.launch_server", *where, *flags_of(settings)]
    from bench.gpu.peers.engines.own_engine import boot_document

    boot = folder / "boot.json"
    boot.write_text(json.dumps(boot_document(setup) | {"server": {"management_port": 0}}))
    return ["-m", "specdecode_engine", "--boot", str(boot), *where]


def flags_of(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as flags; those without a value, and the tokenizer's, are left out."""
    words: list[str] = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if name == WITHOUT_TOKENIZER or value is None or value is False:
            continue
        if value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        else:
            words += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return words
