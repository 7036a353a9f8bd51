"""The program `specdecode-operator`: run, render, boot, check, replay."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specdecode_operator import logs, render
from specdecode_operator.errors import StartError
from specdecode_operator.settings import Settings, from_environment, version

FAILED = 1
REFUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.action(options)
    except (render.FileError, ValueError) as error:
        print(f"specdecode-operator: {error}", file=sys.stderr)
        return REFUSED
    except (StartError, OSError) as error:
        print(f"specdecode-operator: {error}", file=sys.stderr)
        return FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specdecode-operator",
        description="Turns SpecDecodeDeployment resources into engine pods.",
        epilog="Settings of `run` are read from SPECDECODE_* first: ENGINE_IMAGE, NAMESPACES, "
        "HEALTH_PORT, METRICS_PORT, WORKERS, RESYNC_SECONDS, START_TIMEOUT_SECONDS, "
        "LEADER_ELECTION, LEASE_NAMESPACE, LEASE_NAME, IDENTITY, LOG_LEVEL, LOG_FORMAT.",
    )
    parser.add_argument("--version", action="version", version=version())
    actions = parser.add_subparsers(required=True)
    _add_run(actions.add_parser("run", help="reconcile resources until told to stop"))
    _add_render(actions.add_parser("render", help="print what would be written for a file"))
    _add_check(actions.add_parser("check", help="say whether an installation works"))
    _add_replay(actions.add_parser("replay", help="judge trials again from their evidence"))
    _add_boot(actions.add_parser("boot", help="print the boot file that a file asks for"))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "-n", "--namespace", action="append", metavar="NS", help="serve this namespace; repeatable"
    )
    scope.add_argument(
        "-A", "--all-namespaces", action="store_true", help="serve the whole cluster (default)"
    )
    parser.add_argument("--engine-image", metavar="IMAGE", help="image where spec.image is absent")
    parser.add_argument("--kubeconfig", metavar="FILE", help="cluster to work on")
    parser.add_argument("--health-port", type=int, metavar="PORT")
    parser.add_argument("--metrics-port", type=int, metavar="PORT")
    parser.add_argument("--workers", type=int, metavar="N", help="reconciles at a time")
    parser.add_argument("--resync-seconds", type=float, metavar="S")
    parser.add_argument("--start-timeout-seconds", type=float, metavar="S")
    parser.add_argument(
        "--leader-election",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="work only while holding a Lease, so that several operators may run (default)",
    )
    parser.add_argument("--lease-namespace", metavar="NS", help="the pod's own where absent")
    parser.add_argument("--lease-name", metavar="NAME")
    parser.add_argument("--identity", metavar="NAME", help="who this is; the pod where absent")
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    parser.add_argument("--log-format", choices=("json", "text"))
    parser.set_defaults(action=_run)


def _add_render(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", required=True, help="YAML file, or - for standard input")
    parser.add_argument("--image", metavar="IMAGE", help="engine image where spec.image is absent")
    parser.set_defaults(action=_render)


def _add_boot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", required=True, help="YAML file, or - for standard input")
    parser.add_argument(
        "--models", type=Path, metavar="DIR", help="folder that stands for every claim"
    )
    parser.set_defaults(action=_boot)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a resource or an entry of its history, or -")
    parser.set_defaults(action=_replay)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--health", metavar="URL", help="the operator's health endpoint")
    parser.add_argument("-n", "--namespace", default="default", metavar="NS")
    parser.add_argument("--kubeconfig", metavar="FILE", help="cluster to check")
    parser.set_defaults(action=_check)


def _run(options: argparse.Namespace) -> int:
    # Here, because Kopf and the client take seconds to import and `render` needs neither.
    from specdecode_operator.run import run

    settings = _settings(options)
    logs.configure(settings.log_level, settings.log_format)
    asyncio.run(run(settings))
    return 0


def _settings(options: argparse.Namespace) -> Settings:
    """Flags over environment."""
    settings = from_environment()
    given = {
        name: value
        for name, value in vars(options).items()
        if value is not None and name in Settings.__slots__
    }
    if options.namespace or options.all_namespaces:
        given["namespaces"] = tuple(options.namespace or ())
    return replace(settings, **given)


def _render(options: argparse.Namespace) -> int:
    image = options.image or from_environment().engine_image
    sys.stdout.write(render.render(options.file, _text(options.file), image))
    return 0


def _replay(options: argparse.Namespace) -> int:
    from specdecode_operator import replay

    try:
        found = replay.replay(options.file, _text(options.file))
    except replay.ReplayError as error:
        print(f"specdecode-operator: {error}", file=sys.stderr)
        return REFUSED
    for line in replay.lines(found):
        print(line)
    return 0 if all(each.is_same for each in found) else FAILED


def _boot(options: argparse.Namespace) -> int:
    sys.stdout.write(render.boot(options.file, _text(options.file), options.models))
    return 0


def _check(options: argparse.Namespace) -> int:
    from specdecode_operator import check

    kubeconfig = options.kubeconfig or from_environment().kubeconfig
    findings = asyncio.run(check.check(kubeconfig, options.namespace, options.health))
    for finding in findings:
        print(finding)
    return 0 if all(finding.is_good for finding in findings) else FAILED


def _text(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
