"""The page in a headless Chromium, with a real engine and with hostile answers."""

import json
from collections.abc import AsyncIterator

import pytest

from checks.harness.devtools import Tab, browse
from tests.engine.serve.conftest import RunningServer
from tests.engine.serve.scripted import scripted_server

KEY = "sk-page-key-0123456789"
IDLE = "!document.getElementById('send').disabled"
LAST = "[...document.querySelectorAll('.assistant .text')].at(-1)"
SEND = """
(text => {
  document.getElementById('input').value = text;
  document.getElementById('form').requestSubmit();
})(%s)
"""
OVERFLOWING = """
[...document.querySelectorAll('body, body *')]
  .filter(each => !each.closest('.scroll') || each.matches('.scroll'))
  .filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .map(each => each.tagName + ' ' + each.className)
"""
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<a href='javascript:window.hacked = 1'>click</a>",
    "</span></div><style>body { display: none }</style>",
    "<svg onload='window.hacked = 1'><iframe srcdoc='<script>parent.hacked = 1</script>'>",
    "{{constructor.constructor('window.hacked = 1')()}} ${window.hacked = 1}",
    "\u202egnp.exe \u2066 \u2069 \u200f\u202d",
    "a\x00b\x1b[2J\x07",
    "Z\u0351\u036f\u0321" * 200,
    "wide" * 200,
    "a" + "\n" * 200 + "b",
)


@pytest.fixture
async def tab(debian_program, tmp_path) -> AsyncIterator[Tab]:
    folder = tmp_path / "profile"
    folder.mkdir()
    async with browse(debian_program("/usr/bin/chromium"), folder) as opened:
        yield opened


async def ask(tab: Tab, text: str) -> str:
    """Send a message; returns the text of the answer."""
    await tab.value(SEND % json.dumps(text))
    await tab.wait(IDLE)
    return str(await tab.value(f"{LAST}.textContent"))


async def test_a_chat_shows_the_answer_and_what_was_drafted(tab: Tab, drafting_server) -> None:
    await tab.open(drafting_server.url + "/")
    await tab.wait("document.getElementById('model').textContent === 'echo'")
    await tab.value("document.getElementById('temperature').value = 0")
    await tab.value("document.getElementById('limit').value = 30")
    question = "Count from one to twenty."
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 30}
    answer = drafting_server.post("/v1/chat/completions", json=body).json()
    assert await ask(tab, question) == answer["choices"][0]["message"]["content"]
    accept_length = answer["usage"]["specdecode"]["accept_length"]
    shown = float(await tab.value("document.getElementById('accept').textContent"))
    assert shown == pytest.approx(accept_length, abs=0.0051)
    kinds = await tab.value(f"[...{LAST}.children].map(each => each.className)")
    assert set(kinds) == {"drafted", "plain"}
    await tab.wait("document.querySelectorAll('#table tr').length > 0")
    await tab.wait("document.getElementById('reason').textContent.length > 1")
    own = drafting_server.url
    assert all(each.startswith(f"request {own}/v1/") for each in tab.requests)
    assert tab.messages == []


async def test_the_key_stays_in_the_page(tab: Tab, start_server, tmp_path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    server: RunningServer = start_server(api_key_path=keys)
    await tab.open(server.url + "/")
    await tab.wait("document.getElementById('model').textContent.includes('401')")
    await tab.value(f"document.getElementById('key').value = '{KEY}'")
    await tab.value("document.getElementById('key').dispatchEvent(new Event('change'))")
    await tab.wait("document.getElementById('model').textContent === 'echo'")
    await tab.value("document.getElementById('limit').value = 4")
    assert await ask(tab, "the quick brown fox")
    kept = "document.cookie + location.href + JSON.stringify({...localStorage, ...sessionStorage})"
    assert KEY not in await tab.value(kept)
    assert KEY not in json.dumps(await tab.call("Page.getNavigationHistory"))
    assert not any(KEY in each for each in tab.requests)
    assert await tab.value("indexedDB.databases().then(found => found.length)") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_hostile_answers_are_text_and_the_page_stays_usable(
    tab: Tab, write_model, tmp_path, scheme: str
) -> None:
    with scripted_server(write_model, tmp_path / "model", 3) as server:
        await tab.look(360, scheme=scheme)
        await tab.open(server.url + "/")
        await tab.wait("document.getElementById('model').textContent === 'echo'")
        for text in HOSTILE:
            shown = await ask(tab, text)
            expected = server.post(
                "/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]}
            ).json()["choices"][0]["message"]["content"]
            assert shown == expected
        assert await tab.value("window.hacked") is None
        for width in (360, 1280):
            await tab.look(width, scheme=scheme)
            assert await tab.value(OVERFLOWING) == []
        assert await ask(tab, "the fox") == "the fox"
    assert tab.messages == []


LONG = """
(() => {
  const message = new Shown('assistant');
  const text = %s;
  for (let at = 0; at < text.length; at += %d) {
    message.add(text.slice(at, at + %d), at / %d %% 2 ? 'drafted' : 'plain');
    if (at %% 1000 === 0) message.draw();
  }
  message.draw();
  return [message.text.textContent.length, document.querySelectorAll('*').length];
})()
"""


@pytest.mark.parametrize(
    ("text", "piece", "shown"),
    [
        ("'ab'.repeat(10000)", 1, 20_000),
        ("'x'.repeat(1e6)", 1_000_000, 200_000),
        ("'a\\n'.repeat(1e5)", 4096, 200_000),
    ],
    ids=["20,000 tokens", "a line of a megabyte", "100,000 lines"],
)
async def test_a_long_answer_keeps_the_document_small(
    tab: Tab, echo_server, text: str, piece: int, shown: int
) -> None:
    await tab.open(echo_server.url + "/")
    length, nodes = await tab.value(LONG % (text, piece, piece, piece))
    assert shown <= length <= shown + 100
    assert nodes < 5000
    assert await ask(tab, "the fox")


async def test_an_answer_can_be_stopped_and_a_refusal_is_shown(tab: Tab, start_process) -> None:
    engine = start_process(step_seconds=0.1)
    await tab.open(engine.url + "/")
    await tab.wait("document.getElementById('model').textContent === 'echo'")
    await tab.value(SEND % json.dumps("hello there"))
    await tab.wait(f"{LAST} && {LAST}.textContent.length > 0")
    await tab.value("document.getElementById('stop').click()")
    await tab.wait(IDLE)
    assert await tab.value("document.getElementById('notice').textContent") == "stopped"
    await tab.value("document.getElementById('temperature').value = 7")
    await tab.value(SEND % json.dumps("again"))
    await tab.wait(IDLE)
    notice = await tab.value("document.getElementById('notice').textContent")
    assert "status 400" in notice
    assert "temperature" in notice
