"""Sends requests to the endpoint: from a pod in the cluster, and from here by a port-forward."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from demo.console import Console, DemoFailed
from demo.kubernetes import Cluster, wait_until

QUESTION = "What is speculative decoding?"
MODEL = "chat"

# Runs inside the cluster, with nothing but Python's standard library.
_ASK_INSIDE = """
import json, sys, urllib.request
body = json.dumps({"model": sys.argv[2], "temperature": 0, "max_tokens": 96,
                   "messages": [{"role": "user", "content": sys.argv[3]}]}).encode()
request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", body,
                                 {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=60) as response:
    answer = json.load(response)
print(json.dumps({"text": answer["choices"][0]["message"]["content"], "usage": answer["usage"]}))
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """A text and the number of its tokens."""

    text: str
    tokens: int


def ask_inside(
    cluster: Cluster, image: str, note: Callable[[str], None], model: str = MODEL
) -> Answer:
    """Ask through the Service, from a pod that is made for it and removed.

    The answer is read from the pod's log: `kubectl run --rm -i` prints nothing if the container
    ends while kubectl attaches to it.
    """
    url = cluster.get("sdd", MODEL)["status"]["address"]["url"]
    cluster.kubectl("delete", "pod", "ask", "--ignore-not-found", "--wait")
    cluster.kubectl(
        "run", "ask", f"--image={image}", "--image-pull-policy=IfNotPresent", "--restart=Never",
        "--command", "--", "python3", "-c", _ASK_INSIDE, url, model, QUESTION,
    )  # fmt: skip
    wait_until(lambda: _unfinished(cluster), note, seconds=180)
    printed = cluster.kubectl("logs", "ask")
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    if not lines:
        raise DemoFailed(f"the pod inside the cluster printed no answer:\n{printed}")
    cluster.kubectl("delete", "pod", "ask")
    answer = json.loads(lines[0])
    return Answer(answer["text"], answer["usage"]["completion_tokens"])


def _unfinished(cluster: Cluster) -> str | None:
    phase = cluster.get("pod", "ask")["status"].get("phase")
    return None if phase in ("Succeeded", "Failed") else f"the pod is {phase}"


def ask_streaming(url: str, console: Console) -> Answer:
    """Ask with the openai client and print the answer as it comes."""
    pieces, tokens = [], 0
    console.stream("    ")
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=96,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                console.stream(pieces[-1].replace("\n", "\n    "))
            if chunk.usage is not None:
                tokens = chunk.usage.completion_tokens
    console.stream("\n")
    return Answer("".join(pieces), tokens)


def accept_length(metrics: str) -> float:
    """Work out tokens per verify step from the text of /metrics."""
    totals = {
        sample.name: sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
    }
    steps = totals.get("specdecode_request_steps_total", 0)
    if not steps:
        raise DemoFailed("/metrics counts no decode step yet; send a request first")
    return totals["specdecode_emitted_tokens_total"] / steps
