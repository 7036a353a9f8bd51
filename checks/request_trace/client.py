"""The client: waits for the server and reads one streamed completion to its last byte."""

import http.client
import json
import time

START_TIMEOUT_S = 120.0
REQUEST_TIMEOUT_S = 60.0
_POLL_S = 0.1


class NoAnswer(Exception):
    """The server did not give the answer that is to be traced."""


def read_first_completion(port: int, model: str, prompt: str, max_tokens: int) -> str:
    """Ask again and again while the server loads; return the first answer's text.

    Raises:
        NoAnswer: there was none within `START_TIMEOUT_S`; the message is the last reason.
    """
    ends_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return read_completion(port, model, prompt, max_tokens)
        except (NoAnswer, OSError) as error:
            if time.monotonic() > ends_s:
                raise NoAnswer(f"none within {START_TIMEOUT_S:.0f} s: {error}") from error
        time.sleep(_POLL_S)


def read_completion(port: int, model: str, prompt: str, max_tokens: int) -> str:
    """Stream one completion on a connection of its own; return its text.

    Raises:
        NoAnswer: another status than 200, or a stream without its end.
    """
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    answer = response.read().decode()
    connection.close()
    if response.status != 200 or "data: [DONE]" not in answer:
        raise NoAnswer(f"status {response.status}: {answer[-500:]}")
    chunks = [line[6:] for line in answer.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)
