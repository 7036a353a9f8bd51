"""A chat from its first message to its last: reads lines, prints answers as they arrive."""

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from getpass import getpass

from specdecode_api import names
from specdecode_api.terminal_chat.api_client import ApiClient, ChatError, KeyRefused
from specdecode_api.terminal_chat.conversation import Conversation, Piece
from specdecode_api.terminal_chat.screen import Screen

HELP = "/clear starts over, /exit or Ctrl-D ends, Ctrl-C stops an answer"


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of an answer."""
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 to 2")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer")


def run_chat(
    url: str,
    options: argparse.Namespace,
    remedy: str,
    before_message: Callable[[], None] = lambda: None,
) -> None:
    """Chat with the model of a server until the input ends, or Ctrl-C between two answers.

    Args:
        options: those of `add_chat_options`.
        remedy: what to do if nothing answers at the URL.
        before_message: called before each message is sent; may raise `ChatError`.

    Raises:
        ChatError: there is no server, or a message fails and the input is not a terminal.
    """
    client, model = _connect(url, remedy)
    chosen = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    given = {name: value for name, value in chosen.items() if value is not None}
    with suppress(KeyboardInterrupt):
        _converse(Conversation(client, model, given), Screen(), options.system, before_message)


def _connect(url: str, remedy: str) -> tuple[ApiClient, str]:
    """Return the API at a URL and its model; a key that is missing is read without echo."""
    # The variable may have one key per line.
    key = next(iter(os.environ.get(names.VARIABLE_API_KEY, "").split()), None)
    client = ApiClient(url, key, remedy)
    try:
        return client, client.model()
    except KeyRefused:
        if key is not None or not sys.stdin.isatty():
            raise
    with suppress(EOFError):
        client = ApiClient(url, getpass("API key: ").strip() or None, remedy)
    return client, client.model()


def _converse(
    conversation: Conversation,
    screen: Screen,
    system: str | None,
    before_message: Callable[[], None],
) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401 - `input` then edits lines and keeps a history
    start = [{"role": "system", "content": system}] if system else []
    conversation.messages = [*start]
    is_interactive = sys.stdin.isatty()
    if is_interactive:
        screen.line(f"{conversation.model}: {HELP}", is_dim=True)
    while (text := screen.read("> ")) is not None and text.strip() != "/exit":
        if text.strip() == "/clear":
            conversation.messages = [*start]
        elif text.strip() == "/help":
            screen.line(HELP, is_dim=True)
        elif text.strip():
            try:
                before_message()
                _answer(conversation, text, screen)
            except ChatError as error:
                if not is_interactive:
                    raise
                screen.line()
                screen.line(str(error), is_dim=True)


def _answer(conversation: Conversation, text: str, screen: Screen) -> None:
    with closing(conversation.ask(text)) as pieces:
        try:
            was_reasoning = False
            for piece in pieces:
                if not isinstance(piece, Piece):
                    screen.line()
                    screen.line(f"[{piece.line()}]", is_dim=True)
                    continue
                if was_reasoning and not piece.is_reasoning:
                    screen.line()
                screen.write(piece.text, is_dim=piece.is_reasoning)
                was_reasoning = piece.is_reasoning
        except KeyboardInterrupt:
            screen.line()
            screen.line("[stopped]", is_dim=True)
