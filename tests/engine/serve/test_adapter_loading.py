"""LoRA adapters are loaded and unloaded over HTTP, with the engine in either process."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from checks.harness.adapter_files import ATTENTION, EVERYWHERE, random_factors, write_adapter
from checks.soak.measures import resident_bytes
from tests.engine.serve.conftest import EXAMPLES, wait_until
from tests.engine.serve.own_process import Engine, engine_of, running_engine, stopped_streams

WORDS = "the quick brown fox jumps over the lazy dog " * 4
FIXED = "fixed"
MAX_LOADED = 3
RANK = 32
TENSORS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


class Files:
    """Folders of adapters: those below the root of the servers, and one that is not."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        target = EXAMPLES / "target"
        for seed, name in enumerate(("one", "two", "team/three")):
            tensors = random_factors(target, EVERYWHERE, rank=RANK, seed=seed, size=0.2)
            write_adapter(self.root / name, tensors, {"r": RANK})
        tensors = random_factors(target, ATTENTION, seed=9, size=0.5)
        self.outside = write_adapter(folder / "outside", tensors)
        shutil.copytree(self.root / "one", self.root / FIXED)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("adapters"))


def flags_of(files: Files) -> dict[str, object]:
    return {
        "lora_modules": f"{FIXED}={files.root / FIXED}",
        "lora_root": files.root,
        "max_loras": MAX_LOADED,
        "max_running_requests": 8,
        "enable_prompt_tokens_details": True,
    }


@pytest.fixture(scope="module", params=["off", "on"])
def shared(
    request: pytest.FixtureRequest, files: Files, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("server")
    yield from running_engine(folder, engine_process=request.param, **flags_of(files))


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    """An engine with the adapter of its start alone, as after each test."""
    yield shared
    for name in {*names(shared)} - {FIXED}:
        unload(shared, name)
        wait_until(lambda name=name: unload(shared, name).status_code == 404)  # type: ignore[misc]
    if FIXED not in names(shared):
        assert load(shared, FIXED, FIXED).status_code == 200


def load(engine: Engine, name: object, path: object, **more: object) -> httpx.Response:
    body = {"lora_name": name, "lora_path": path, **more}
    return httpx.post(f"{engine.url}/v1/load_lora_adapter", json=body, timeout=60)


def unload(engine: Engine, name: object) -> httpx.Response:
    body = {"lora_name": name}
    return httpx.post(f"{engine.url}/v1/unload_lora_adapter", json=body, timeout=60)


def names(engine: Engine) -> list[str]:
    listed = httpx.get(f"{engine.url}/v1/models", timeout=10).json()["data"]
    return [one["id"] for one in listed if one["parent"]]


def ask(engine: Engine, model: str, **fields: object) -> httpx.Response:
    body = {"model": model, "prompt": WORDS, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    return httpx.post(f"{engine.url}/v1/completions", json=body | fields, timeout=60)


def text_of(engine: Engine, model: str, **fields: object) -> str:
    answer = ask(engine, model, **fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def message_of(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


def test_a_loaded_adapter_writes_what_one_of_the_start_writes(engine: Engine, files: Files) -> None:
    answer = load(engine, "first", "one")
    assert answer.status_code == 200, answer.text
    facts = answer.json()["adapters"]
    assert [one["name"] for one in facts] == [FIXED, "first"]
    assert facts[0]["sha256"] == facts[1]["sha256"]
    assert load(engine, "second", str(files.root / "two")).status_code == 200
    texts = {name: text_of(engine, name) for name in ("echo", FIXED, "first", "second")}
    assert texts["first"] == texts[FIXED]
    assert len({*texts.values()}) == 3
    listed = httpx.get(f"{engine.url}/v1/models/second", timeout=10).json()
    assert (listed["root"], listed["parent"]) == (str(files.root / "two"), "echo")
    info = httpx.get(f"{engine.url}/server_info", timeout=10).json()
    assert [one["name"] for one in info["facts"]["adapters"]] == [FIXED, "first", "second"]


def test_an_unloaded_adapter_is_unknown(engine: Engine) -> None:
    assert load(engine, "sql", "one").status_code == 200
    text_of(engine, "sql")
    answer = unload(engine, "sql")
    assert answer.status_code == 200, answer.text
    assert [one["name"] for one in answer.json()["adapters"]] == [FIXED]
    assert "use 'echo', 'fixed'" in message_of(ask(engine, "sql"), 404)
    message = message_of(unload(engine, "sql"), 404)
    assert message == "lora_name 'sql' is not loaded; the engine has 'fixed'"


def test_a_name_with_other_content_needs_an_unload(engine: Engine, files: Files) -> None:
    assert load(engine, "sql", "one").status_code == 200
    for path in ("one", "team/../one", str(files.root / "one")):
        assert load(engine, "sql", path, load_inplace=False).status_code == 200
    assert "unload it first" in message_of(load(engine, "sql", "two"), 409)
    assert text_of(engine, "sql") == text_of(engine, FIXED)
    assert unload(engine, "sql").status_code == 200
    assert load(engine, "sql", "two").status_code == 200
    assert text_of(engine, "sql") != text_of(engine, FIXED)


def test_a_full_engine_names_its_adapters(engine: Engine) -> None:
    for name in ("a", "b"):
        assert load(engine, name, "two").status_code == 200
    message = message_of(load(engine, "c", "one"), 409)
    assert "3 adapters are loaded (a, b, fixed)" in message
    assert "--max-loras" in message
    assert unload(engine, "a").status_code == 200
    assert load(engine, "c", "one").status_code == 200


def test_other_content_under_a_name_has_no_old_pages(engine: Engine) -> None:
    prompt = f"pages: {WORDS}"
    cached, texts = [], []
    for path in ("one", "two", "one"):
        assert load(engine, "sql", path).status_code == 200
        for _ in range(2):
            answer = ask(engine, "sql", prompt=prompt).json()
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
            texts.append(answer["choices"][0]["text"])
        assert unload(engine, "sql").status_code == 200
    assert cached == [False, True, False, True, True, True]  # the third has the first's content
    assert texts == [texts[0]] * 2 + [texts[2]] * 2 + [texts[0]] * 2
    assert texts[0] != texts[2]


def link(files: Files, name: str, to: Path) -> str:
    place = files.root / name
    if not place.is_symlink():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(to)
    return name


def with_linked_file(files: Files, file: str) -> str:
    folder = files.root / f"linked {file}"
    if not folder.exists():
        shutil.copytree(files.root / "one", folder)
        (folder / file).unlink()
        (folder / file).symlink_to(files.outside / file)
    return folder.name


OUTSIDE: dict[str, Callable[[Files], object]] = {
    "parent": lambda files: "../outside",
    "parent within": lambda files: "one/../../outside",
    "absolute": lambda files: str(files.outside),
    "root": lambda files: ".",
    "absolute root": lambda files: str(files.root),
    "system": lambda files: "/etc",
    "link": lambda files: link(files, "link", files.outside),
    "link to a parent": lambda files: link(files, "up", files.folder) + "/outside",
    "linked config": lambda files: with_linked_file(files, CONFIG),
    "linked tensors": lambda files: with_linked_file(files, TENSORS),
    "loop": lambda files: link(files, "loop", files.root / "loop"),
    "file": lambda files: f"one/{CONFIG}",
    "missing": lambda files: "missing",
    "home": lambda files: "~",
    "hub": lambda files: "hf://org/name",
    "nul": lambda files: "one\0",
    "long name": lambda files: "a" * 4000,
    "many parts": lambda files: "one/" + "../one/" * 500,
    "too long": lambda files: "a" * 5000,
    "empty": lambda files: "",
    "number": lambda files: 7,
    "null": lambda files: None,
    "list": lambda files: ["one"],
    "surrogate": lambda files: "one\ud800",
}


def test_paths_outside_the_root_are_refused(engine: Engine, files: Files) -> None:
    before = text_of(engine, FIXED)
    for kind, path_of in OUTSIDE.items():
        path = path_of(files)
        if kind == "many parts":  # of the adapter itself
            assert load(engine, "sql", path).status_code == 200
            unload(engine, "sql")
            continue
        # httpx cannot write half of a character.
        body, json_type = json.dumps({"lora_name": "sql", "lora_path": path}), "application/json"
        url, headers = f"{engine.url}/v1/load_lora_adapter", {"content-type": json_type}
        answer = httpx.post(url, content=body, headers=headers, timeout=60)
        assert "lora_path" in message_of(answer, 400) or kind == "surrogate", kind
        assert len(answer.text) < 1000, kind
        assert str(files.outside) not in answer.text or kind == "absolute"
    assert names(engine) == [FIXED]
    assert text_of(engine, FIXED) == before


@pytest.mark.parametrize(
    "body",
    [
        {"lora_name": "echo", "lora_path": "one"},
        {"lora_name": "a:b", "lora_path": "one"},
        {"lora_name": "", "lora_path": "one"},
        {"lora_name": "a" * 129, "lora_path": "one"},
        {"lora_name": "a\n", "lora_path": "one"},
        {"lora_name": 1, "lora_path": "one"},
        {"lora_name": "a", "lora_path": "one", "load_inplace": True},
        {"lora_name": "a", "lora_path": "one", "other": 1},
        {"lora_path": "one"},
        [],
        "one",
    ],
)
def test_bodies_that_name_no_adapter_are_refused(engine: Engine, body: object) -> None:
    answer = httpx.post(f"{engine.url}/v1/load_lora_adapter", json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    assert names(engine) == [FIXED]


def test_pages_of_other_origins_change_nothing(engine: Engine) -> None:
    for path, body in (("load", {"lora_path": "one"}), ("unload", {})):
        content = json.dumps({"lora_name": FIXED, **body})
        url = f"{engine.url}/v1/{path}_lora_adapter"
        for headers in ({}, {"content-type": "text/plain"}):
            answer = httpx.post(url, content=content, headers=headers, timeout=60)
            assert answer.status_code == 415
    assert names(engine) == [FIXED]


def change_config(folder: Path, **keys: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | keys))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / TENSORS)
    change(tensors)
    save_file(tensors, folder / TENSORS)


def replace(file: Path, make: Callable[[Path], None]) -> None:
    file.unlink()
    make(file)


def first(tensors: dict[str, Any]) -> str:
    return next(name for name in sorted(tensors) if name.endswith("lora_A.weight"))


def with_nan(tensors: dict[str, Any]) -> None:
    tensors[first(tensors)][0, 0] = float("nan")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no config": lambda folder: (folder / CONFIG).unlink(),
    "no tensors": lambda folder: (folder / TENSORS).unlink(),
    "cut": lambda folder: os.truncate(folder / TENSORS, 2000),
    "empty tensors": lambda folder: os.truncate(folder / TENSORS, 0),
    "empty config": lambda folder: os.truncate(folder / CONFIG, 0),
    "garbage": lambda folder: (folder / TENSORS).write_bytes(os.urandom(5000)),
    "config of a list": lambda folder: (folder / CONFIG).write_text("[]"),
    "deep config": lambda folder: (folder / CONFIG).write_text("[" * 5000),
    "rank": lambda folder: change_config(folder, r=5),
    "high rank": lambda folder: change_config(folder, r=10**9),
    "no number": lambda folder: change_config(folder, r="eight"),
    "alpha": lambda folder: change_config(folder, lora_alpha=1e300),
    "dora": lambda folder: change_config(folder, use_dora=True),
    "type": lambda folder: change_config(folder, peft_type="IA3"),
    "unknown key": lambda folder: change_config(folder, new_trick=3),
    "nan": lambda folder: rewrite(folder, with_nan),
    "one factor": lambda folder: rewrite(folder, lambda all_: all_.pop(first(all_))),
    "shape": lambda folder: rewrite(
        folder, lambda all_: all_.update({first(all_): all_[first(all_)][:, 1:].contiguous()})
    ),
    "unknown tensor": lambda folder: rewrite(
        folder, lambda all_: all_.update({"base_model.model.other": all_[first(all_)].clone()})
    ),
    "model": lambda folder: shutil.copy(folder / TENSORS, folder / "model.safetensors"),
    "folder": lambda folder: replace(folder / TENSORS, Path.mkdir),
    "pipe": lambda folder: replace(folder / TENSORS, os.mkfifo),
    "config pipe": lambda folder: replace(folder / CONFIG, os.mkfifo),
}


def test_damaged_adapters_are_refused_and_change_nothing(engine: Engine, files: Files) -> None:
    before = text_of(engine, FIXED)
    reasons = {}
    for number, (kind, damage) in enumerate(DAMAGES.items()):
        folder = files.root / f"damaged {number}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(files.root / "one", folder)
        damage(folder)
        message = message_of(load(engine, "sql", folder.name), 400)
        reasons[kind] = message.replace(str(folder), "")
        assert str(folder) in message, message
        assert names(engine) == [FIXED]
        if kind != "model":  # of an adapter that is loaded the content is compared, no more
            expected = 409 if (folder / TENSORS).is_file() and (folder / CONFIG).is_file() else 400
            assert load(engine, FIXED, folder.name).status_code == expected, kind
    assert len({*reasons.values()}) > 15
    assert "NaN" in reasons["nan"] or "nan" in reasons["nan"]
    assert text_of(engine, FIXED) == before
    assert load(engine, "sql", "one").status_code == 200
    assert text_of(engine, "sql") == before


def test_an_adapter_of_a_higher_rank_than_planned_is_refused(engine: Engine, files: Files) -> None:
    tensors = random_factors(EXAMPLES / "target", ("q_proj",), rank=RANK + 1)
    folder = write_adapter(files.root / "high", tensors, {"r": RANK + 1})
    message = message_of(load(engine, "sql", folder.name), 400)
    assert (
        f"rank {RANK + 1}, and adapters.max_rank is {RANK}; raise it (--max-lora-rank)" in message
    )


def test_texts_and_memory_stay_while_adapters_come_and_go(engine: Engine, files: Files) -> None:
    has_process = "on" in engine.process.args  # type: ignore[operator]
    pid = engine_of(engine.process.pid) if has_process else engine.process.pid
    num_loads = 30 if has_process else 15
    expected = {name: text_of(engine, name) for name in ("echo", FIXED)}
    assert load(engine, "sql", "two").status_code == 200
    expected["two"] = text_of(engine, "sql")
    assert unload(engine, "sql").status_code == 200
    ended, found = Event(), []

    def send(model: str) -> int:
        count = 0
        while not ended.is_set():
            found.append(text_of(engine, model) == expected[model])
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(send, name) for name in ("echo", FIXED)]
        try:
            for number in range(num_loads):
                path = ("one", "two")[number % 2]
                assert load(engine, "sql", path).status_code == 200
                assert text_of(engine, "sql") == expected[FIXED if path == "one" else "two"]
                assert unload(engine, "sql").status_code == 200
                if number == num_loads // 3:
                    before = resident_bytes(pid)
        finally:
            ended.set()
        assert min(client.result() for client in clients) > 0
    assert all(found)
    assert resident_bytes(pid) < before + 8 * adapter_bytes(files)


def adapter_bytes(files: Files) -> int:
    return (files.root / "one" / TENSORS).stat().st_size


@pytest.mark.parametrize("shared", ["on"], indirect=True)
def test_an_unload_waits_for_requests_that_have_begun(engine: Engine) -> None:
    assert load(engine, "sql", "two").status_code == 200
    body = {"model": "sql", "prompt": WORDS, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    expected = text_of(engine, "sql", max_tokens=60)
    with ThreadPoolExecutor(2) as pool:
        calls = dict.fromkeys("ab", ("/v1/completions", body))
        streams = stopped_streams(engine, pool, calls)
        assert unload(engine, "sql").status_code == 202
        assert unload(engine, "sql").status_code == 202
        assert names(engine) == [FIXED]
        assert ask(engine, "sql").status_code == 404
        assert "being unloaded" in message_of(load(engine, "sql", "two"), 409)
        os.kill(engine_of(engine.process.pid), signal.SIGCONT)
        for stream in streams.values():
            events = [line[6:] for line in stream.result().splitlines() if line[:6] == "data: "]
            assert events.pop() == "[DONE]"
            parts = [json.loads(event)["choices"] for event in events]
            assert "".join(part[0]["text"] for part in parts if part) == expected
    wait_until(lambda: unload(engine, "sql").status_code == 404)
    assert load(engine, "sql", "one").status_code == 200
    assert text_of(engine, "sql") == text_of(engine, FIXED)


@pytest.mark.parametrize("shared", ["on"], indirect=True)
def test_loaded_adapters_survive_the_engine(engine: Engine, files: Files) -> None:
    folder = files.root / "changed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(files.root / "one", folder)
    assert load(engine, "sql", "two").status_code == 200
    assert load(engine, "changed", "changed").status_code == 200
    assert unload(engine, FIXED).status_code == 200
    expected = text_of(engine, "sql")
    engine.kill_engine()
    wait_until(engine.is_ready, 120)
    assert names(engine) == ["sql", "changed"]
    assert text_of(engine, "sql") == expected != text_of(engine, "changed")
    assert ask(engine, FIXED).status_code == 404
    change_config(folder, lora_alpha=9)
    engine.kill_engine()
    wait_until(engine.is_ready, 120)
    assert names(engine) == ["sql"]
    assert text_of(engine, "sql") == expected
    assert "changed is no longer served" in engine.log_text()
    for name in ("a", "b"):  # the places of the others are free
        assert load(engine, name, "one").status_code == 200
