"""The comparison with vLLM on a CPU, and servers over HTTP, as far as they run without vLLM."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from bench.gpu.peers.answers import RecordedAnswers, read_answers
from bench.gpu.peers.cells import (
    HALF_B,
    PAIR,
    RECORDED,
    Cell,
    Engine,
    Load,
    Mode,
    cells_of,
    gpu_jobs,
    vllm_cpu_jobs,
)
from bench.gpu.peers.checkpoint.cycle import ANSWERS_FILE
from bench.gpu.peers.checkpoint.numbers import tokens_of, write_tokenizer
from bench.gpu.peers.checkpoint.sizes import HALF_B as HALF_B_SIZE
from bench.gpu.peers.engines.servers import server_command
from bench.gpu.peers.jobs.engine_process import fault_of_version
from bench.gpu.peers.jobs.http_client import ServerRefused, complete
from bench.gpu.peers.jobs.job_process import Setup
from bench.gpu.peers.jobs.measuring import quantile
from bench.gpu.peers.loads import BY_MODEL, ScheduledRequest
from bench.gpu.peers.results.figures import Figure
from bench.gpu.peers.results.report import ratios_to
from checks.harness.installation import environment_folder
from checks.vllm_cpu.environment import LOCK, VERSION, ensure_vllm
from checks.vllm_cpu.record import ARGUMENTS, FOLDER, METRICS

REQUEST = ScheduledRequest((5, 6), 3, 1, 0)


def test_every_cell_of_vllm_has_one_of_this_engine() -> None:
    cells = {*cells_of(vllm_cpu_jobs())}
    vllm = {cell for cell in cells if cell.engine is Engine.VLLM}
    own = {(cell.mode, cell.load, cell.batch, cell.head, cell.model) for cell in cells - vllm}
    assert {(one.mode, one.load, one.batch, one.head, one.model) for one in vllm} <= own
    assert {(one.load, one.model) for one in vllm} == {
        (Load.HTTP, ""),
        (Load.DECODE, PAIR),
        *((load, model) for model in HALF_B for load in (Load.DECODE, Load.PREFILL)),
    }
    assert HALF_B_SIZE.parameters >= 500e6
    assert BY_MODEL["540m"].prefill_prompt == 1000


def test_each_engine_serves_8_64_and_128_streams_on_a_gpu() -> None:
    served = [cell for cell in cells_of(gpu_jobs()) if cell.load is Load.HTTP]
    assert {(one.engine, one.batch) for one in served} == {
        (engine, streams)
        for engine in (Engine.OWN, Engine.VLLM, Engine.SGLANG)
        for streams in (8, 64, 128)
    }
    assert {one.head for one in served} == {RECORDED}


def test_ratios_compare_equal_cells() -> None:
    cells = [Cell(engine, Mode.PLAIN, Load.DECODE, 1) for engine in (Engine.OWN, Engine.VLLM)]
    figures = {
        cell: Figure.measured(cell, [rate], 0, 1, {})
        for cell, rate in zip(cells, (6, 4), strict=True)
    }
    alone = Cell(Engine.OWN, Mode.GOODPUT, Load.DECODE, 1)
    figures[alone] = Figure.measured(alone, [9.0], 0, 1, {})
    failed = Cell(Engine.VLLM, Mode.GOODPUT, Load.DECODE, 1)
    figures[failed] = Figure.not_run(failed, "its process ended")
    assert ratios_to(Engine.VLLM, figures) == {str(cells[0]): 1.5}


def test_recorded_answers_are_compared_token_by_token(tmp_path: Path) -> None:
    pairs = [[[1, 2], [3, 4, 5]], [[6, 7], [8, 9, 10]]]
    (tmp_path / ANSWERS_FILE).write_text(json.dumps(pairs))
    answers = read_answers(tmp_path)
    assert isinstance(answers, RecordedAnswers)
    assert answers.count_wrong([1, 2], [3, 4]) == 0
    assert answers.count_wrong([1, 2], [3, 0, 5]) == 1
    assert answers.count_wrong([6, 7], [8, 9, 10, 11]) == 1
    first, second = answers.prompts(1, 2, "a"), answers.prompts(1, 2, "b")
    assert sorted([*first, *second]) == [[1, 2], [6, 7]]
    with pytest.raises(ValueError, match="2 tokens are recorded as a prompt, 3 requested"):
        answers.prompts(1, 3, "c")


def test_a_text_names_the_tokens_that_were_emitted(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 300)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokens = [0, 297, 17, 17, 5]
    assert tokens_of(tokenizer.decode(tokens)) == tokens
    assert tokenizer.get_vocab_size() == 300
    with pytest.raises(ValueError, match="word"):
        tokens_of(" 1 word")


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([7.0], 0.99)) == (50, 99, 7)


def commands(engine: Engine, mode: Mode, head: str, folder: Path) -> list[str]:
    cell = Cell(engine, mode, Load.HTTP, 64, head)
    setup = Setup("/checkpoint", head, [cell.document()], is_gpu=True)
    return server_command(engine, setup, 8123, folder)


def test_a_server_has_the_settings_of_its_engine_in_process(tmp_path: Path) -> None:
    own = commands(Engine.OWN, Mode.GOODPUT, RECORDED, tmp_path)
    boot = json.loads((tmp_path / "boot.json").read_text())
    assert own[:4] == ["-m", "specdecode_engine", "--boot", str(tmp_path / "boot.json")]
    assert boot["speculation"]["draft_path"] == "/checkpoint/recorded"
    vllm = commands(Engine.VLLM, Mode.BY_BATCH, RECORDED, tmp_path)
    draft = json.loads(vllm[vllm.index("--speculative-config") + 1])
    assert draft["num_speculative_tokens_per_batch_size"][0] == [1, 8, 5]
    assert "/checkpoint/target" in vllm
    sglang = commands(Engine.SGLANG, Mode.ADAPTIVE, RECORDED, tmp_path)
    assert "--speculative-adaptive" in sglang
    first = sglang.index("--cuda-graph-bs-prefill") + 1
    assert sglang[first : first + 2] == ["256", "512"]
    for words in (vllm, sglang):
        assert not any("tokenizer" in word for word in words)
        assert words[words.index("--port") + 1] == "8123"


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_flags_of_servers_are_those_of_the_peer(name: str, tmp_path: Path) -> None:
    from specdecode_api.peer_flags import read_peer_flags

    known = {flag for row in read_peer_flags().flags.values() for flag in (row.flag, *row.aliases)}
    known.add("--cuda-graph-bs-prefill")  # of 0.5.17; the table has those of 0.5.23
    mode = Mode.BY_BATCH if name == "vllm" else Mode.ADAPTIVE
    words = commands(Engine(name), mode, RECORDED, tmp_path)
    assert {word for word in words if word.startswith("--")} - known <= {
        "--cuda-graph-bs-decode",
        "--cuda-graph-max-bs-decode",
    }


@asynccontextmanager
async def answering(lines: Sequence[bytes]) -> AsyncIterator[int]:
    """Answer every connection with these lines; yields the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.writelines(lines)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def completed(*lines: bytes) -> tuple[list[int], float | None]:
    async def run() -> tuple[list[int], float | None]:
        async with answering(lines) as port:
            return await complete(port, "target", REQUEST)

    return asyncio.run(run())


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_streams_are_joined_and_the_first_text_is_timed() -> None:
    tokens, first_s = completed(
        OK, b"1f\r\n", event(""), event(" 7 1"), event("2"), b'data: {"choices": []}\n', event(" 3")
    )
    assert tokens == [7, 12, 3]
    assert first_s is not None
    assert first_s > 0
    assert completed(OK, b"data: [DONE]\n", event(" 9")) == ([], None)


def test_a_server_that_refuses_or_breaks_off_is_an_error() -> None:
    with pytest.raises(ServerRefused, match=r"400 Bad Request: .*no prompt"):
        completed(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"no prompt")
    with pytest.raises(ServerRefused, match="out of memory"):
        completed(OK, event(" 1"), b'data: {"error": "out of memory"}\n')


def test_a_server_that_ends_leaves_its_last_log_line(tmp_path: Path) -> None:
    cell = Cell(Engine.VLLM, Mode.PLAIN, Load.HTTP, 8)
    setup = {
        "checkpoint": str(tmp_path),
        "head": "",
        "cells": [cell.document()],
        "is_gpu": False,
        "python": sys.executable,
        "paths": [str(tmp_path)],
    }
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('libnuma.so: not found')")
    words = [sys.executable, "-m", "bench.gpu.peers.engines.served_engine", json.dumps(setup)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdin.close()
        process.wait()
        process.stdout.close()
    assert lines[0] == {"imported": True}
    wanted = "RuntimeError: the server ended; its last log line: libnuma.so: not found"
    assert lines[1] == {"failed": wanted}


def test_vllm_on_a_cpu_has_a_version_of_its_own() -> None:
    assert fault_of_version(Engine.VLLM, f"{VERSION}+cpu", VERSION) == ""
    assert "pinned is 0.32.0" in fault_of_version(Engine.VLLM, "0.33.0", VERSION)
    assert fault_of_version(Engine.OWN, "0.1.0", None) == ""


def test_the_environment_names_the_version_that_vllm_looks_for(tmp_path: Path) -> None:
    folder = environment_folder(LOCK, tmp_path)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (folder / "installed").touch()
    assert ensure_vllm(tmp_path) == folder / "bin" / "python"
    (metadata,) = packages.glob("vllm-*/METADATA")
    assert "Version: 0.32.0+cpu" in metadata.read_text()
    assert "torch==2.13.0" in LOCK.read_text()


def test_what_vllm_exposes_is_recorded_with_its_version() -> None:
    document = json.loads((FOLDER / ARGUMENTS).read_text())
    flags = {flag for one in document["arguments"] for flag in one["flags"]}
    assert document["version"] == VERSION
    assert {"--speculative-config", "--shutdown-timeout", "--enforce-eager"} <= flags
    text = (FOLDER / METRICS).read_text()
    assert text.startswith(f"# vLLM {VERSION}")
    values = {
        line.split("{")[0]: float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("vllm:spec_decode") and "_total{" in line and "position" not in line
    }
    drafts, drafted, accepted = (
        values[f"vllm:spec_decode_num_{name}_total"]
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert 0 < drafts * 3 == drafted > accepted > 0
