"""`specdecode-engine chat`: reads messages from the terminal and prints answers as they arrive."""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress

from specdecode_api.command_line import ArgumentParser
from specdecode_engine.cli.api_key_flags import VARIABLE
from specdecode_engine.cli.chat.conversation import ChatError, Conversation, Piece, connect
from specdecode_engine.cli.chat.own_server import serving
from specdecode_engine.cli.chat.screen import Screen

DEFAULT_URL = "http://127.0.0.1:8000"
FAILED = 1
HELP = "/clear starts over, /exit or Ctrl-D ends, Ctrl-C stops an answer"


def chat(arguments: Sequence[str]) -> int:
    """Chat until the input ends; 1 if there is no server, or an answer fails without a terminal."""
    parser = _parser()
    options, flags = parser.parse_known_args(arguments)
    target, is_url = options.target, options.target.startswith(("http://", "https://"))
    if is_url and flags:
        parser.error(f"unrecognized arguments: {' '.join(flags)}; flags of a server need a MODEL")
    screen = Screen()
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for each request
    try:
        with nullcontext(target) if is_url else serving(target, flags) as url:
            client, model = connect(url, _key())
            with closing(client):
                chosen = {"temperature": options.temperature, "max_tokens": options.max_tokens}
                given = {name: value for name, value in chosen.items() if value is not None}
                return _converse(Conversation(client, model, given), screen, options.system)
    except ChatError as error:
        print(f"specdecode-engine chat: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 0


def _key() -> str | None:
    """Return the first key of the variable, which may have one per line."""
    return next(iter(os.environ.get(VARIABLE, "").split()), None)


def _converse(conversation: Conversation, screen: Screen, system: str | None) -> int:
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
                _answer(conversation, text, screen)
            except ChatError as error:
                if not is_interactive:
                    raise
                screen.line()
                screen.line(str(error), is_dim=True)
    return 0


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


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="specdecode-engine chat",
        description="Chat with a served model. With a MODEL (a folder, ORG/NAME or "
        "hf://ORG/NAME) a server is started on a free port, with the flags of serve that follow, "
        f"and ended with the chat. An API key is read from {VARIABLE}.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        default=DEFAULT_URL,
        metavar="URL|MODEL",
        help=f"the server, or the model to serve (default {DEFAULT_URL})",
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 to 2")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer")
    return parser
