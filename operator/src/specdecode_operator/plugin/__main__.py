"""The program `kubectl-specdecode`, which kubectl runs as `kubectl specdecode`."""

import argparse
import asyncio
import io
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from specdecode_api import names
from specdecode_api.command_line import ArgumentParser, bad_number
from specdecode_api.terminal_chat.session import add_chat_options
from specdecode_operator.convert import command
from specdecode_operator.convert.errors import ConvertError
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.lookup import Scope
from specdecode_operator.plugin.trial_arguments import add_trial_commands
from specdecode_operator.plugin.wording import seconds_of
from specdecode_operator.settings import version

FAILED, INTERRUPTED = 1, 130
PIPE_WIDTH = 2000
"""Width of output that is not a terminal, so that a row is never wrapped."""
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    options = _parser().parse_args(arguments)
    console = _console()
    try:
        if (work := options.action(options, console)) is not None:
            asyncio.run(work)
    except PluginError as error:
        print(f"kubectl specdecode: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # for example after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # for example on a full disk
        print(f"kubectl specdecode: cannot write the output: {error}", file=sys.stderr)
        return FAILED
    return 0


def _console() -> Console:
    """A console with the width of the terminal, or wide enough for every row.

    `status -w` redraws a terminal; other outputs get one frame after the other.
    """
    if sys.stdout.isatty():
        return Console(highlight=False)
    width = None if "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=Unpadded(), width=width, highlight=False)


class Unpadded(io.StringIO):
    """Standard output without trailing blanks of tables."""

    def write(self, text: str) -> int:
        """Write whole lines, as a console does."""
        sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))
        return len(text)

    def flush(self) -> None:
        """Write what is left."""
        sys.stdout.flush()


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="kubectl specdecode",
        description="Show SpecDecodeDeployment resources and their engines; try configurations.",
    )
    parser.add_argument("--version", action="version", version=version())
    common = _common()
    actions = parser.add_subparsers(required=True, metavar="COMMAND")
    status = actions.add_parser("status", parents=[common], help="list resources, or diagnose one")
    top = actions.add_parser(
        "top",
        parents=[common],
        help="show engines: draft steps, accept length, tokens per second, load",
    )
    recommend = actions.add_parser(
        "recommend", parents=[common], help="show the recommended table and the command to apply it"
    )
    recommend.add_argument("name", metavar="NAME")
    recommend.set_defaults(action=_recommend, all_namespaces=False)
    logs = actions.add_parser(
        "logs", parents=[common], help="print the logs of all engines of a resource"
    )
    for each in (status, top):
        each.add_argument("name", nargs="?", metavar="NAME")
        each.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces")
        each.add_argument("-w", "--watch", action="store_true", help="refresh until interrupted")
    status.set_defaults(action=_status, interval=2.0)
    top.add_argument(
        "--interval",
        type=_interval,
        default=2.0,
        metavar="S",
        help="measurement interval in seconds (2)",
    )
    top.set_defaults(action=_top)
    _add_logs(logs)
    _add_report(
        actions.add_parser(
            "report",
            parents=[common],
            help="write a page with plots of one resource to standard output, as HTML",
        )
    )
    _add_connections(actions, common)
    add_trial_commands(actions, common)
    convert = actions.add_parser(
        "convert",
        help="write a resource for a command line of vllm serve",
        description=command.DESCRIPTION,
    )
    command.add_arguments(convert)
    convert.set_defaults(action=_convert)
    return parser


def _common() -> ArgumentParser:
    common = ArgumentParser(add_help=False)
    common.add_argument("-n", "--namespace", metavar="NS", help="namespace (that of the context)")
    common.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    common.add_argument("--kubeconfig", metavar="FILE")
    return common


def _add_logs(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("-f", "--follow", action="store_true", help="stream new lines")
    parser.add_argument(
        "-p", "--previous", action="store_true", help="logs of the previous container"
    )
    parser.add_argument(
        "--tail", type=int, default=100, metavar="N", help="lines per pod (100); -1: all"
    )
    parser.add_argument(
        "--since", type=seconds_of, metavar="AGE", help="only newer lines, such as 5m"
    )
    parser.set_defaults(action=_logs, all_namespaces=False)


def _add_report(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help="read the history from this Prometheus, such as http://127.0.0.1:9090 (from the "
        "status of the resource)",
    )
    parser.add_argument(
        "--since",
        type=seconds_of,
        default=86_400,
        metavar="AGE",
        help="length of the history from Prometheus, such as 6h or 7d (1d)",
    )
    parser.set_defaults(action=_report, all_namespaces=False)


def _add_connections(actions: Any, common: ArgumentParser) -> None:
    ui = actions.add_parser(
        "ui",
        parents=[common],
        help="forward a port to the page of an engine, and open it in a browser",
        description="Forward a port of 127.0.0.1 to the page of a ready engine pod, print its URL, "
        "and open it in a browser if standard output is a terminal. If the pod ends, the same port "
        "is forwarded to another one. The engines need serving.page: true, and you need create on "
        "pods/portforward (the role edit).",
    )
    ui.add_argument("name", metavar="NAME")
    ui.add_argument(
        "--port", type=_port, default=0, metavar="N", help="port of 127.0.0.1 (a free one)"
    )
    ui.add_argument("--no-browser", action="store_true", help="only print the URL")
    ui.set_defaults(action=_ui)
    chat = actions.add_parser(
        "chat",
        parents=[common],
        help="chat with an engine in the terminal",
        description="Chat with a ready engine pod through a forwarded port; each line is a "
        f"message. An API key is read from {names.VARIABLE_API_KEY}, or from the terminal without "
        "echo if the engine needs one. You need create on pods/portforward (the role edit).",
    )
    chat.add_argument("name", metavar="NAME")
    add_chat_options(chat)
    chat.set_defaults(action=_chat)


async def _status(options: argparse.Namespace, console: Console) -> None:
    # Imported here: the client takes a second to import, and `--help` does not need it.
    from specdecode_operator.plugin.reach import connect
    from specdecode_operator.plugin.status_view import status

    async with connect(options.kubeconfig, options.context) as reader:
        bars = options.watch and console.is_terminal
        await _show(lambda: status(reader, _scope(options), with_bars=bars), options, console)


async def _recommend(options: argparse.Namespace, console: Console) -> None:
    from specdecode_operator.plugin.reach import connect
    from specdecode_operator.plugin.recommend_view import recommend

    async with connect(options.kubeconfig, options.context) as reader:
        console.print(await recommend(reader, _scope(options)))


async def _report(options: argparse.Namespace, console: Console) -> None:
    from specdecode_operator.plugin.reach import connect
    from specdecode_operator.plugin.report.gather import ReportOptions, report

    wanted = ReportOptions(options.prometheus, options.since)
    async with connect(options.kubeconfig, options.context) as reader:
        page = await report(reader, _scope(options), wanted)
    # Not through the console, which would wrap it. The page declares its encoding, UTF-8.
    sys.stdout.buffer.write(page.encode(errors="replace"))
    sys.stdout.buffer.flush()


async def _top(options: argparse.Namespace, console: Console) -> None:
    from specdecode_operator.plugin.reach import connect
    from specdecode_operator.plugin.top import Memory, top

    async with connect(options.kubeconfig, options.context) as reader:
        memory, scope = Memory(), _scope(options)
        await top(reader, scope, memory)  # the baseline of the first frame
        await asyncio.sleep(options.interval)
        await _show(lambda: top(reader, scope, memory), options, console)


async def _logs(options: argparse.Namespace, console: Console) -> None:
    from specdecode_operator.plugin.logs import Wanted, logs
    from specdecode_operator.plugin.reach import connect

    seen: dict[str, str] = {}

    def write(pod: str, line: str) -> None:
        colour = seen.setdefault(pod, COLOURS[len(seen) % len(COLOURS)])
        console.print(Text(pod, colour).append(" "), Text(line), sep="", soft_wrap=True)

    wanted = Wanted(options.follow, options.previous, options.tail, options.since)
    async with connect(options.kubeconfig, options.context) as reader:
        await logs(reader, _scope(options), wanted, write)


def _ui(options: argparse.Namespace, _: Console) -> None:
    from specdecode_operator.plugin.connect_commands import ui

    ui(options)


def _chat(options: argparse.Namespace, _: Console) -> None:
    from specdecode_operator.plugin.connect_commands import chat

    chat(options)


def _convert(options: argparse.Namespace, _: Console) -> None:
    try:
        command.run_convert(options)
    except ConvertError as error:
        raise PluginError(str(error)) from error


def _scope(options: argparse.Namespace) -> Scope:
    return Scope(options.name, options.namespace, options.all_namespaces)


Draw = Callable[[], Coroutine[Any, Any, RenderableType]]


async def _show(draw: Draw, options: argparse.Namespace, console: Console) -> None:
    """Draw once, or repeatedly with --watch."""
    if not options.watch:
        console.print(await draw())
        return
    if not console.is_terminal:
        async for frame in _frames(draw, options.interval):
            console.print(frame, "")
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        async for frame in _frames(draw, options.interval):
            live.update(frame, refresh=True)


async def _frames(draw: Draw, interval_s: float) -> AsyncIterator[RenderableType]:
    """Endless frames; an error is shown as a frame, because the next request may succeed."""
    yield await draw()
    while True:
        await asyncio.sleep(interval_s)
        try:
            yield await draw()
        except PluginError as error:
            yield Text(str(error), "red")


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise bad_number(text, "write a number of seconds from 0.1 to 3600")
    return value


def _port(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= 65535:
        raise bad_number(text, "write a port from 1 to 65535, or no --port for a free one")
    return value


if __name__ == "__main__":
    sys.exit(main())
