"""`specdecode-engine chat`: a chat with a server, or with a model that it serves meanwhile."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext

from specdecode_api import names
from specdecode_api.command_line import ArgumentParser
from specdecode_api.terminal_chat.api_client import ChatError
from specdecode_api.terminal_chat.session import add_chat_options, run_chat
from specdecode_engine.cli.chat.own_server import serving

DEFAULT_URL = "http://127.0.0.1:8000"
REMEDY = "start a server with: specdecode-engine serve MODEL, or name the model here"
FAILED = 1


def chat(arguments: Sequence[str]) -> int:
    """Chat until the input ends; 1 if there is no server, or an answer fails without a terminal."""
    parser = _parser()
    options, flags = parser.parse_known_args(arguments)
    target, is_url = options.target, options.target.startswith(("http://", "https://"))
    if is_url and flags:
        parser.error(f"unrecognized arguments: {' '.join(flags)}; flags of a server need a MODEL")
    try:
        with nullcontext(target) if is_url else serving(target, flags) as url:
            run_chat(url, options, REMEDY)
    except ChatError as error:
        print(f"specdecode-engine chat: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:  # while a server starts or ends
        return 0
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="specdecode-engine chat",
        description="Chat with a served model. With a MODEL (a folder, ORG/NAME or "
        "hf://ORG/NAME) a server is started on a free port, with the flags of serve that follow, "
        f"and ended with the chat. An API key is read from {names.VARIABLE_API_KEY}, or from the "
        "terminal without echo if the server needs one.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        default=DEFAULT_URL,
        metavar="URL|MODEL",
        help=f"the server, or the model to serve (default {DEFAULT_URL})",
    )
    add_chat_options(parser)
    return parser
