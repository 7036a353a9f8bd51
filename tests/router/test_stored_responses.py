"""Stored responses through a router: the engine that stores one answers, for its key alone."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from bench.router.programs import TARGET, TOKEN, EngineProgram, RouterProgram, wait_until
from specdecode_api.internal_api import HEADER_TOKEN, PATH_ENGINE
from specdecode_engine.drain_socket import DRAIN, DrainClient
from tests.router.test_router import EchoEngine

KEY, OTHER = "sk-first-3f9c1d77", "sk-other-b2e04a58"
STORE = ("--response-store-bytes", str(2**20))


@pytest.fixture(scope="module")
def stack(
    token_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[list[EngineProgram], RouterProgram]]:
    """Two real engines with two keys, and a router."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n{OTHER}\n")
    flags = ("--api-key-file", str(keys), *STORE)
    engines = [EngineProgram(token_file, *flags) for _ in range(2)]
    for engine in engines:
        engine.wait_ready()
    router = RouterProgram(token_file, engines)
    yield engines, router.wait_ready(2)
    router.close()
    for engine in engines:
        engine.close()


def client_of(url: str, key: str = KEY) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


def make(client: Any, value: Any, **fields: Any) -> Any:
    options = {"max_output_tokens": 8, "temperature": 0} | fields
    return client.responses.create(input=value, **options)


def not_found(call: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(openai.NotFoundError) as caught:
        call()
    error = caught.value.response.json()["error"]
    assert error["code"] == "response_not_found"
    return dict(error)


def spread(client: Any, urls: list[str]) -> list[Any]:
    """Return a response that each engine stores, made through the router."""
    found: list[Any] = [None] * len(urls)
    for number in range(200):
        made = make(client, f"{number} foxes " * 9, max_output_tokens=2)
        for position, url in enumerate(urls):
            answer = httpx.get(f"{url}/v1/responses/{made.id}", headers=bearer(client.api_key))
            found[position] = made if answer.status_code == 200 else found[position]
        if all(found):
            return found
    raise AssertionError("one engine got no request")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_nobody_reads_the_response_of_another_key(stack: Any) -> None:
    engines, router = stack
    own, other = client_of(router.url), client_of(router.url, OTHER)
    urls = [router.url, *(each.url for each in engines)]
    unknown = "resp_" + "0" * 48
    for made in spread(own, [each.url for each in engines]):
        assert own.responses.retrieve(made.id) == made
        assert own.responses.input_items.list(made.id).data
        item = [{"type": "item_reference", "id": made.output[0].id}]
        for url in urls:
            client = client_of(url, OTHER)
            not_found(partial(client.responses.retrieve, made.id))
            not_found(partial(client.responses.delete, made.id))
            not_found(partial(client.responses.input_items.list, made.id))
            not_found(partial(make, client, "x", previous_response_id=made.id))
            not_found(partial(make, client, item))
            path, headers = f"{url}/v1/responses", bearer(OTHER)
            asked = [
                (each, httpx.get(f"{path}/{each}", headers=headers)) for each in (made.id, unknown)
            ]
            assert len({answer.text.replace(each, "ID") for each, answer in asked}) == 1
            assert httpx.get(f"{url}/v1/responses/{made.id}").status_code == 401
        assert own.responses.retrieve(made.id) == made
        own.responses.delete(made.id)
        not_found(partial(own.responses.retrieve, made.id))
    assert make(other, "the fox").store is True


def test_a_chain_continues_on_the_engine_that_stores_it(stack: Any) -> None:
    engines, router = stack
    client = client_of(router.url)
    for first in spread(client, [each.url for each in engines]):
        (sent,) = client.responses.input_items.list(first.id).data
        whole = [{"role": "user", "content": sent.content[0].text}]
        last = first
        for turn in range(3):
            whole += [each.to_dict() for each in last.output]
            whole.append({"role": "user", "content": f"turn {turn}"})
            last = make(client, f"turn {turn}", previous_response_id=last.id)
            alone = make(client, whole, store=False)
            assert last.output_text == alone.output_text
            assert last.usage.input_tokens == alone.usage.input_tokens
        references = [{"type": "item_reference", "id": each.id} for each in first.output]
        assert make(client, references).usage.input_tokens > 1
        *_, end = make(client, "so", previous_response_id=last.id, stream=True)
        assert client.responses.retrieve(end.response.id) == end.response


def test_without_a_store_engines_name_the_flag(start_router: Any, token_file: Path) -> None:
    engine = EchoEngine(token_file, TARGET).wait_ready()
    try:
        router = start_router([engine.address], ready=1)
        body = {"input": "x", "previous_response_id": "resp_" + "0" * 48}
        answer = httpx.post(f"{router.url}/v1/responses", json=body)
        assert answer.status_code == 400
        assert "--response-store-bytes" in answer.json()["error"]["message"]
        answer = httpx.delete(f"{router.url}/v1/responses/resp_1")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")
    finally:
        engine.close()


@pytest.fixture
def storing(token_file: Path) -> Iterator[list[EchoEngine]]:
    """Two engines that take a while for each token, with drain sockets 0.sock and 1.sock."""
    engines = [
        EchoEngine(
            token_file,
            TARGET,
            step_seconds=0.05,
            response_store_bytes=2**20,
            drain_socket=str(token_file.parent / f"{number}.sock"),
        )
        for number in range(2)
    ]
    yield [each.wait_ready() for each in engines]
    for engine in engines:
        engine.close()


def test_a_response_of_a_dead_engine_is_not_found(start_router: Any, storing: Any) -> None:
    router = start_router([each.address for each in storing], ready=2)
    client = client_of(router.url)
    first, second = spread(client, [each.url for each in storing])
    storing[0].process.kill()
    storing[0].process.wait(20)
    for call in (
        lambda: client.responses.retrieve(first.id),
        lambda: client.responses.delete(first.id),
        lambda: make(client, "x", previous_response_id=first.id),
    ):
        error = not_found(call)
        assert first.id in error["message"]
    assert client.responses.retrieve(second.id) == second
    chained = make(client, "x", previous_response_id=second.id)
    assert client.responses.retrieve(chained.id) == chained


def test_a_stream_that_another_engine_ends_is_not_stored(start_router: Any, storing: Any) -> None:
    """Its id was sent, and leads to the engine that has gone."""
    router = start_router([each.address for each in storing], ready=2)
    client = client_of(router.url)
    events: list[Any] = []
    for event in make(client, "the fox jumps " * 10, stream=True, max_output_tokens=30):
        has_text = any(each.type == "response.output_text.delta" for each in events)
        events.append(event)
        if event.type == "response.output_text.delta" and not has_text:
            next(each for each in storing if each.computes()).process.kill()
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[0].response.store is True
    assert events[-1].response.store is False
    assert events[-1].response.id == events[0].response.id
    not_found(lambda: client.responses.retrieve(events[-1].response.id))


def test_a_chained_stream_ends_with_the_engine_of_its_chain(
    start_router: Any, storing: Any
) -> None:
    """No other engine has the conversation."""
    router = start_router([each.address for each in storing], ready=2)
    first = make(client_of(router.url), "the fox jumps " * 10)
    body = {"input": "x", "previous_response_id": first.id, "stream": True}
    url = f"{router.url}/v1/responses"
    text = ""
    with httpx.stream("POST", url, json=body | {"max_output_tokens": 30}, timeout=60) as answer:
        for line in answer.iter_lines():
            is_first = "output_text.delta" in line and "output_text.delta" not in text
            text += line
            if is_first and line.startswith("event"):
                next(each for each in storing if each.computes()).process.kill()
    assert "response.completed" not in text
    assert '"code":"unresumable_refused"' in text


def test_a_response_that_is_generated_again_is_stored_there(
    start_router: Any, storing: Any
) -> None:
    router = start_router([each.address for each in storing], ready=2)
    client = client_of(router.url)
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(make, client, "the fox jumps " * 10, max_output_tokens=30)
        wait_until(lambda: any(each.computes() for each in storing), 60, "the request")
        next(each for each in storing if each.computes()).process.kill()
        made = making.result()
    assert made.store is True
    assert client.responses.retrieve(made.id) == made


def test_a_draining_engine_answers_for_what_it_stores(
    start_router: Any, storing: Any, token_file: Path
) -> None:
    router = start_router([each.address for each in storing], ready=2)
    client = client_of(router.url)
    first, _ = spread(client, [each.url for each in storing])
    with DrainClient(token_file.parent / "0.sock") as drain:
        assert drain.send(DRAIN)["status"] == "draining"
        wait_until(lambda: router.count_ready() == 1, 60, "the drain")
        assert client.responses.retrieve(first.id) == first
        chained = make(client, "x", previous_response_id=first.id)
        assert client.responses.retrieve(chained.id) == chained


def test_the_key_is_sent_to_routers_that_want_it_alone(storing: Any) -> None:
    """A router of the release before refuses fields that it does not know."""
    url, headers = f"{storing[0].management_url}{PATH_ENGINE}", {HEADER_TOKEN: TOKEN}
    assert "response_key" not in httpx.get(url, headers=headers).json()
    found = httpx.get(f"{url}?response_key=1", headers=headers).json()
    assert len(found["response_key"]) == 64
    assert httpx.get(f"{url}?response_key=1").status_code == 403
    assert found["response_key"] not in httpx.get(f"{storing[0].management_url}/server_info").text
