"""LoRA adapters over HTTP: names of models, on every path, and what each answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.harness.adapter_files import ATTENTION, EVERYWHERE, random_factors, write_adapter
from specdecode_engine.serve.errors import model_not_found
from tests.engine.serve.conftest import EXAMPLES, RunningServer, real_server, wait_until

NAMES = ("poems", "team/sql")
COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MESSAGES = "/v1/messages"
PATHS = (COMPLETIONS, CHAT, RESPONSES, MESSAGES)
WORDS = "the quick brown fox jumps over the lazy dog " * 4


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = {}
    for number, (name, maps) in enumerate(zip(NAMES, (EVERYWHERE, ATTENTION), strict=True)):
        tensors = random_factors(EXAMPLES / "target", maps, seed=number, size=0.5)
        folder = write_adapter(tmp_path_factory.mktemp("adapters") / "a", tensors)
        found[name] = str(folder)
    return found


@pytest.fixture(scope="module")
def server(modules: dict[str, str]) -> Iterator[RunningServer]:
    draft = {"algorithm": "STANDALONE", "draft_path": str(EXAMPLES / "draft"), "num_steps": 3}
    running = real_server(draft, adapters=modules, prompt_tokens_details=True)
    yield running.wait_ready()
    running.close()


def body_of(path: str, **fields: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": WORDS}]
    own: dict[str, dict[str, object]] = {
        COMPLETIONS: {"prompt": WORDS, "max_tokens": 12},
        CHAT: {"messages": messages, "max_tokens": 12},
        RESPONSES: {"input": WORDS, "max_output_tokens": 12},
        MESSAGES: {"messages": messages, "max_tokens": 12},
    }
    return own[path] | {"temperature": 0, "ignore_eos": True} | fields


def ask(server: RunningServer, path: str, **fields: object) -> tuple[str, str]:
    """Return the model that is named in the answer, and what was generated."""
    answer = server.post(path, json=body_of(path, **fields))
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["model"], repr(found.get("choices") or found.get("content") or found["output"][0])


def text_of(server: RunningServer, **fields: object) -> str:
    answer = server.post(COMPLETIONS, json=body_of(COMPLETIONS, **fields))
    assert answer.status_code == 200, answer.text
    text = answer.json()["choices"][0]["text"]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("path", PATHS)
def test_every_path_answers_with_the_adapter_of_model(server: RunningServer, path: str) -> None:
    named = {name: ask(server, path, model=name)[0] for name in ("echo", *NAMES)}
    assert named == {name: name for name in ("echo", *NAMES)}
    assert ask(server, path, model="echo:team/sql")[0] == "team/sql"


def test_each_name_has_its_own_answer(server: RunningServer) -> None:
    texts = {name: text_of(server, model=name) for name in ("echo", *NAMES)}
    assert len({*texts.values()}) == 3
    assert text_of(server) == texts["echo"]
    for name in NAMES:
        assert text_of(server, model=f"echo:{name}") == texts[name]


def test_lora_path_chooses_an_adapter(server: RunningServer) -> None:
    for path in (COMPLETIONS, CHAT):
        answers = {name: ask(server, path, lora_path=name)[0] for name in NAMES}
        assert answers == {name: name for name in NAMES}
        assert ask(server, path, model="poems", lora_path="poems")[0] == "poems"
        assert ask(server, path, model="echo", lora_path=None)[0] == "echo"
    assert text_of(server, lora_path="poems") == text_of(server, model="poems")
    assert text_of(server, lora_path="poems") != text_of(server)


def test_choices_and_prompts_of_a_call_have_its_adapter(server: RunningServer) -> None:
    body = body_of(COMPLETIONS, model="poems", n=2, prompt=[WORDS, "a " + WORDS])
    found = server.post(COMPLETIONS, json=body).json()["choices"]
    assert [one["text"] for one in found[:2]] == [text_of(server, model="poems")] * 2


def test_streams_name_the_adapter(server: RunningServer) -> None:
    body = body_of(CHAT, model="echo:poems", stream=True)
    events = server.post(CHAT, json=body).text
    assert events.count('"model":"poems"') > 1
    assert '"model":"echo' not in events


@pytest.mark.parametrize("path", [*PATHS, "/tokenize", f"{MESSAGES}/count_tokens"])
@pytest.mark.parametrize("model", ["other", "echo:other", "poems:echo", "echo:", "", "poems "])
def test_an_unknown_model_is_404_with_the_names(
    server: RunningServer, path: str, model: str
) -> None:
    bodies: dict[str, dict[str, object]] = {
        "/tokenize": {"prompt": WORDS},
        f"{MESSAGES}/count_tokens": {"messages": [{"role": "user", "content": WORDS}]},
    }
    body = bodies[path] if path in bodies else body_of(path)
    answer = server.post(path, json=body | {"model": model})
    assert answer.status_code == 404
    assert "use 'echo', 'poems', 'team/sql'" in answer.text


def test_tokens_are_counted_for_adapters(server: RunningServer) -> None:
    counts = [
        server.post("/tokenize", json={"prompt": WORDS, "model": name}).json()["count"]
        for name in ("echo", "poems", "echo:team/sql")
    ]
    assert counts[0] > 0
    assert len({*counts}) == 1


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"lora_path": "other"}, 404, "use 'poems', 'team/sql'"),
        ({"lora_path": "echo"}, 404, "lora_path 'echo' is not served"),
        ({"lora_path": "poems", "model": "team/sql"}, 400, "remove one"),
        ({"lora_path": ["poems"]}, 400, "lora_path"),
        ({"lora": [{"id": 0}]}, 400, "name the adapter in model"),
    ],
)
def test_wrong_adapters_are_refused_by_name(
    server: RunningServer, fields: dict[str, object], status: int, words: str
) -> None:
    answer = server.post(CHAT, json=body_of(CHAT, **fields))
    assert answer.status_code == status
    assert words in answer.text


def test_lora_path_without_adapters_has_a_remedy() -> None:
    error = model_not_found("sql", (), "lora_path")
    assert error.status == 404
    message = (
        "lora_path is 'sql': this engine has no adapters; remove it, start the engine with "
        "--lora-modules, or load one"
    )
    assert message in repr(error.body)


def test_models_are_listed_with_their_parent(
    server: RunningServer, modules: dict[str, str]
) -> None:
    listed = server.get("/v1/models").json()["data"]
    assert [one["id"] for one in listed] == ["echo", *NAMES]
    assert [one["parent"] for one in listed] == [None, "echo", "echo"]
    assert [one["root"] for one in listed[1:]] == [*modules.values()]
    for one in listed:
        assert server.get(f"/v1/models/{one['id']}").json() == one
    assert server.get("/v1/models/echo:poems").json() == listed[1]
    missing = server.get("/v1/models/other")
    assert missing.status_code == 404
    assert "'team/sql'" in missing.text


def test_prefixes_are_not_shared_between_adapters(server: RunningServer) -> None:
    cached = []
    for name in ("echo", "poems", "team/sql") * 2:
        body = body_of(COMPLETIONS, model=name, prompt=f"shared: {WORDS}")
        usage = server.post(COMPLETIONS, json=body).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"] > 0)
    assert cached == [False] * 3 + [True] * 3


def resume_id_of(server: RunningServer) -> str | None:
    server.service.resume_id.want()
    wait_until(lambda: server.service.resume_id.value is not None, 60)
    return server.service.resume_id.value


def test_the_resume_id_depends_on_the_adapters(tmp_path: Path) -> None:
    tensors = random_factors(EXAMPLES / "target", ["q_proj"])
    ids = []
    for number, alpha in enumerate((8, 8, 9)):
        folder = write_adapter(tmp_path / str(number), tensors, {"lora_alpha": alpha})
        running = real_server({}, adapters={"a": str(folder)})
        try:
            ids.append(resume_id_of(running.wait_ready()))
        finally:
            running.close()
    assert ids[0] == ids[1] != ids[2]
