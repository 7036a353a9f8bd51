"""`kubectl specdecode ui` and `chat`: the page of one engine, and a chat with it."""

import argparse
import asyncio
import os
import sys
import webbrowser
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException

from specdecode_api.terminal_chat.api_client import ChatError
from specdecode_api.terminal_chat.session import run_chat
from specdecode_operator.plugin import lookup
from specdecode_operator.plugin.engine_pod import EnginePod, choose_engine, page_is_off
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.lookup import Scope
from specdecode_operator.plugin.port_forward import ADDRESS, END_S, PortForward, forwarded
from specdecode_operator.plugin.reach import connect

PAGE_S = 30.0


def ui(options: argparse.Namespace) -> None:
    """Forward a port to the page of an engine until interrupted.

    Raises:
        PluginError: no engine serves the page, or kubectl does not forward to it.
    """
    with forwarded(lambda last: _find(options, last), _flags(options), options.port) as forward:
        is_shown = False
        while True:
            if _has_page(forward):
                if not is_shown:
                    _show(forward, is_opened=not options.no_browser)
                is_shown = True
                forward.wait()
            _renew(forward)


def chat(options: argparse.Namespace) -> None:
    """Chat with an engine until the input ends.

    Raises:
        PluginError: no engine is ready, kubectl does not forward to it, or an answer fails and the
            input is not a terminal.
    """
    with forwarded(lambda last: _find(options, last), _flags(options)) as forward:

        def renew() -> None:
            try:
                _renew(forward)
            except PluginError as error:
                raise ChatError(str(error)) from error

        try:
            run_chat(forward.url, options, "start the command again", renew)
        except ChatError as error:
            raise PluginError(str(error)) from error


def _show(forward: PortForward, *, is_opened: bool) -> None:
    url = f"{forward.url}/"
    print(f"{url} is the page of pod {forward.pod.name}; Ctrl-C ends", flush=True)
    if is_opened and sys.stdout.isatty() and _has_display():
        webbrowser.open(url)


def _find(options: argparse.Namespace, last: str | None) -> EnginePod:
    async def find() -> EnginePod:
        async with connect(options.kubeconfig, options.context) as reader:
            (resource,) = await lookup.resources(reader, Scope(options.name, options.namespace))
            found = await lookup.pods(reader, resource)
            return choose_engine(resource, found, datetime.now(UTC), last)

    return asyncio.run(find())


def _flags(options: argparse.Namespace) -> list[str]:
    """The flags by which kubectl uses the same cluster as the same user."""
    given = {"--context": options.context, "--kubeconfig": options.kubeconfig}
    return [word for flag, value in given.items() if value for word in (flag, value)]


def _renew(forward: PortForward) -> None:
    before = forward.pod.name
    if forward.renew():
        words = f"the connection to pod {before} has ended; now to pod {forward.pod.name}"
        print(words, file=sys.stderr, flush=True)


def _has_page(forward: PortForward) -> bool:
    """Whether the engine answered with its page; False if the forward has ended meanwhile.

    Raises:
        PluginError: it answered otherwise.
    """
    connection = HTTPConnection(ADDRESS, forward.port, timeout=PAGE_S)
    try:
        connection.request("GET", "/")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        if forward.wait(END_S):
            return False
        why = str(error) or type(error).__name__
        raise PluginError(f"pod {forward.pod.name} does not answer its page: {why}") from error
    finally:
        connection.close()
    if status == 404:
        raise page_is_off(forward.pod)
    if status != 200:
        raise PluginError(f"pod {forward.pod.name} answers its page with status {status}")
    return True


def _has_display() -> bool:
    """Whether a browser has a window; one for terminals would take this one, without a script."""
    return sys.platform != "linux" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
