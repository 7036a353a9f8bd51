"""Servers whose model writes what the last message contains, with any number of tokens a step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specdecode_engine.serve.engine.core import LoadedEngine
from tests.engine.serve.conftest import RunningServer, echo_boot
from tests.engine.serve.echo_core import EchoCore

# The core repeats the prompt and ends at <|end|>: what follows that is in the prompt only.
TEMPLATE = (
    "{% if show == 'tools' %}{{ tools | tojson }}"
    "{% elif show == 'messages' %}{{ messages | tojson }}"
    "{% elif show == 'effort' %}{{ reasoning_effort }} {{ enable_thinking }}"
    "{% else %}{{ messages[-1]['content'] }}{% endif %}<|end|>"
    "{% if is_open %}<think>\n{% endif %}"
)
CONTEXT = 4096


@contextmanager
def scripted_server(
    write_model: Callable[..., Path], folder: Path, tokens_per_step: int, **server: object
) -> Iterator[RunningServer]:
    """A server that answers with the last message, or with what its template got."""
    write_model(folder, chat_template=TEMPLATE)
    core = EchoCore(context_length=CONTEXT, tokens_per_step=tokens_per_step, eos_token_ids=[0])
    running = RunningServer(
        echo_boot(folder, **server), lambda progress: LoadedEngine(core, folder)
    )
    try:
        yield running.wait_ready()
    finally:
        running.close()
