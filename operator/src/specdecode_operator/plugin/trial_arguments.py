"""Arguments of the commands that create or change trials, and what runs them."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from specdecode_api.command_line import ArgumentParser
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.lookup import Scope

if TYPE_CHECKING:
    from specdecode_operator.plugin.reach import Reader

GUARD = {
    "min_gain": ("PERCENT", "least gain, such as 3%%"),
    "margin": ("PERCENT", "accepted loss, such as 2%%"),
    "min_requests": ("N", "requests of each arm before a verdict"),
    "min_duration": ("DURATION", "shortest measurement, such as 10m"),
    "max_duration": ("DURATION", "longest measurement, such as 2h"),
}
COMMANDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "pause": (
        {"state": "Paused"},
        "paused",
        "give every engine the configuration in force, keep the trial",
    ),
    "resume": ({"state": "Running"}, "resumed", "continue a paused trial"),
    "abort": ({"state": "Aborted"}, "aborted", "end a trial; the configuration in force stays"),
    "promote": ({"promote": True}, "promoted", "put the candidate in force, whatever was measured"),
}


def add_trial_commands(actions: Any, common: ArgumentParser) -> None:
    """Add `trial`, `rollback` and `adopt` to the commands of the program."""
    trial = actions.add_parser("trial", help="start, control and list trials of a configuration")
    verbs = trial.add_subparsers(required=True, metavar="VERB")
    _add_start(verbs.add_parser("start", parents=[common], help="try a candidate"))
    for verb, (spec, outcome, text) in COMMANDS.items():
        each = verbs.add_parser(verb, parents=[common], help=text)
        each.add_argument("name", metavar="TRIAL", help="a trial, or a deployment with one trial")
        each.set_defaults(action=_change, spec=spec, outcome=outcome, all_namespaces=False)
    listing = verbs.add_parser("list", parents=[common], help="list trials, the newest first")
    listing.add_argument("name", nargs="?", metavar="NAME", help="deployment (all)")
    listing.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces")
    listing.set_defaults(action=_list)
    _add_rollback(
        actions.add_parser(
            "rollback", parents=[common], help="put an earlier configuration in force"
        )
    )
    _add_adopt(
        actions.add_parser(
            "adopt", parents=[common], help="print the patch that writes what is in force into spec"
        )
    )


def _add_start(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the deployment")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "-p",
        "--patch",
        metavar="PATCH",
        help="JSON merge patch of the spec in force, such as '{pageSize: 32}'",
    )
    source.add_argument(
        "-f", "--patch-file", metavar="FILE", help="the same from a file, or - for standard input"
    )
    parser.add_argument("--strategy", choices=("Auto", "Hot", "Canary", "Switchback"))
    parser.add_argument(
        "--on-success",
        choices=("Promote", "Report"),
        help="put a candidate that passes in force, or wait for `trial promote` (Report)",
    )
    parser.add_argument(
        "--exempt",
        action="store_const",
        const="Exempt",
        help="begin even beyond rollout.exploration.maxCandidateShare; the cost counts",
    )
    for name, (metavar, text) in GUARD.items():
        kind = int if metavar == "N" else str
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=metavar,
            type=kind,
            help=f"{text} (that of the deployment)",
        )
    parser.set_defaults(action=_start, all_namespaces=False)


def _add_rollback(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the deployment")
    parser.add_argument(
        "--to",
        metavar="REVISION",
        help="number or name of a ControllerRevision (the newest that is not in force)",
    )
    parser.set_defaults(action=_rollback, all_namespaces=False)


def _add_adopt(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the deployment")
    parser.add_argument(
        "--no-image", action="store_true", help="leave engine.image out of the patch"
    )
    parser.set_defaults(action=_adopt, all_namespaces=False)


async def _start(options: argparse.Namespace, console: Console) -> None:
    from specdecode_operator.plugin import trials

    source, text = _source(options)
    candidate = trials.read_candidate(source, text)
    guard = {_camel(name): value for name in GUARD if (value := getattr(options, name)) is not None}
    wanted = trials.TrialOptions(options.strategy, options.on_success, options.exempt, guard)
    await _with_reader(
        options,
        console,
        lambda reader: trials.start(reader, _scope(options), candidate, wanted),
    )


def _source(options: argparse.Namespace) -> tuple[str, str]:
    if options.patch is not None:
        return "--patch", options.patch
    if options.patch_file == "-":
        return "standard input", sys.stdin.read()
    try:
        return options.patch_file, Path(options.patch_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(f"cannot read {options.patch_file}: {error}") from None


async def _change(options: argparse.Namespace, console: Console) -> None:
    from specdecode_operator.plugin import trials

    await _with_reader(
        options,
        console,
        lambda reader: trials.change(reader, _scope(options), options.spec, options.outcome),
    )


async def _list(options: argparse.Namespace, console: Console) -> None:
    from specdecode_operator.plugin import trials

    await _with_reader(options, console, lambda reader: trials.listed(reader, _scope(options)))


async def _rollback(options: argparse.Namespace, console: Console) -> None:
    from specdecode_operator.plugin import trials

    await _with_reader(
        options, console, lambda reader: trials.rollback(reader, _scope(options), options.to)
    )


async def _adopt(options: argparse.Namespace, console: Console) -> None:
    from specdecode_operator.plugin import trials

    async def plain(reader: "Reader") -> None:
        # Not through the console, which would wrap and trim what is meant for a file.
        sys.stdout.write(
            await trials.adopt(reader, _scope(options), with_image=not options.no_image)
        )

    await _with_reader(options, console, plain)


async def _with_reader(
    options: argparse.Namespace, console: Console, command: Callable[["Reader"], Any]
) -> None:
    from specdecode_operator.plugin.reach import connect

    async with connect(options.kubeconfig, options.context) as reader:
        shown = await command(reader)
    if shown is not None:
        console.print(shown)


def _scope(options: argparse.Namespace) -> Scope:
    return Scope(options.name, options.namespace, options.all_namespaces)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each.title() for each in others)
