"""The chat of both programs: what its screen shows, and servers that it cannot use."""

import io
import socket
import threading

import pytest

from specdecode_api.terminal_chat.api_client import ApiClient, ChatError
from specdecode_api.terminal_chat.screen import Screen, printable


def test_text_of_a_model_cannot_command_the_terminal():
    hostile = "a\x1b]0;title\x07b\x1b[2Jc\u202ed\r\x9b1m\te\n"
    shown = printable(hostile)
    assert shown == "a\ufffd]0;title\ufffdb\ufffd[2Jc\ufffdd\ufffd\ufffd1m\te\n"
    family = "\U0001f469\u200d\U0001f469"
    assert printable(f"é北京{family}") == f"é北京{family}"


def test_a_file_gets_no_control_sequence():
    out = io.StringIO()
    Screen(out).line("status", is_dim=True)
    assert out.getvalue() == "status\n"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://", "has no host"),
        ("http://127.0.0.1:99999", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("http://jane:secret@127.0.0.1", "the URL has a user or password"),
        ("http://127.0.0.1:1/a b", "nothing answers"),
        ("http://127.0.0.1:1/é", "nothing answers"),
        ("http://127.0.0.1:1", "nothing answers at http://127.0.0.1:1"),
        ("http://" + "a" * 70 + ".example", "nothing answers"),
    ],
)
def test_a_url_without_a_server_is_refused_with_a_remedy(url, words):
    with pytest.raises(ChatError, match=words.replace(".", r"\.")) as refused:
        ApiClient(url, None, "start one").model()
    assert "secret" not in str(refused.value)
    assert "start one" in str(refused.value) or "nothing" not in words


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines", "\x00"])
def test_a_key_for_no_header_is_refused_unseen(key):
    client = ApiClient("http://127.0.0.1:1", key, "start one")
    with pytest.raises(ChatError, match="API key has a character") as refused:
        client.model()
    assert key not in str(refused.value)
    assert key not in repr(client)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "was cut off"),
        (b"SSH-2.0-x\r\n", "was cut off"),
        (HEAD + b"12\r\ndata: {\"a\": 1}\r\n\r\n\r\n", "was cut off"),
        (HEAD + b"8\r\ndata: {\n\r\n0\r\n\r\n", "was cut off"),
        (HEAD + b"zz\r\n", "was cut off"),
        (HEAD + b"20\r\ndata: {\"error\": {\"message\": 12}}\r\n\r\n0\r\n\r\n", "failed: 12"),
        (b"HTTP/1.1 500 x\r\nContent-Length: 4\r\n\r\nbody", "status 500: body"),
        (b"HTTP/1.1 307 x\r\nLocation: http://other\r\nContent-Length: 0\r\n\r\n", "status 307"),
    ],
)  # fmt: skip
def test_a_broken_answer_is_an_error_in_words(answer, words):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reply():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        client = ApiClient(f"http://127.0.0.1:{listener.getsockname()[1]}", None, "")
        with pytest.raises(ChatError, match=words):
            list(client.events("chat/completions", {}))
        thread.join()
