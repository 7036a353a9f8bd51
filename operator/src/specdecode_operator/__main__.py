"""The program `specdecode-operator`: run, render, boot, convert, check, replay."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specdecode_api import names
from specdecode_api.command_line import ArgumentParser
from specdecode_operator.commands import render
from specdecode_operator.convert import command
from specdecode_operator.convert.errors import ConvertError
from specdecode_operator.process import logs
from specdecode_operator.process.errors import StartError
from specdecode_operator.settings import Settings, from_environment, version

FAILED = 1
REFUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.action(options)
    except (render.FileError, ConvertError, ValueError) as error:
        print(f"specdecode-operator: {error}", file=sys.stderr)
        return REFUSED
    except (StartError, OSError) as error:
        print(f"specdecode-operator: {error}", file=sys.stderr)
        return FAILED
    return code


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="specdecode-operator",
        description="Reconcile SpecDecodeDeployment custom resources to engine pods.",
        epilog="Settings of `run` can also be set by environment variables SPECDECODE_*; flags "
        "override them: ENGINE_IMAGE, NAMESPACES, OPERATOR_CLASS, "
        "HEALTH_PORT, METRICS_PORT, WORKERS, RESYNC_SECONDS, START_TIMEOUT_SECONDS, "
        "LEADER_ELECTION, LEASE_NAMESPACE, LEASE_NAME, IDENTITY, LOG_LEVEL, LOG_FORMAT. Of "
        "engine pods: POD_SECURITY_CONTEXT and CONTAINER_SECURITY_CONTEXT (as JSON), "
        "CA_BUNDLE (CONFIGMAP/KEY).",
    )
    parser.add_argument("--version", action="version", version=version())
    actions = parser.add_subparsers(required=True)
    _add_run(actions.add_parser("run", help="reconcile custom resources until SIGTERM"))
    _add_render(
        actions.add_parser(
            "render", help="print the objects that the operator would create for a file"
        )
    )
    _add_check(actions.add_parser("check", help="check an installation"))
    _add_replay(
        actions.add_parser("replay", help="repeat the decisions of trials from their evidence")
    )
    _add_boot(
        actions.add_parser("boot", help="print the boot file for a custom resource in a file")
    )
    convert = actions.add_parser(
        "convert",
        help="write a resource for a command line of vllm serve",
        description=command.DESCRIPTION,
    )
    command.add_arguments(convert)
    convert.set_defaults(action=_convert)
    return parser


def _add_run(parser: ArgumentParser) -> None:
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "-n", "--namespace", action="append", metavar="NS", help="watch this namespace; repeatable"
    )
    scope.add_argument(
        "-A", "--all-namespaces", action="store_true", help="watch all namespaces (default)"
    )
    parser.add_argument(
        "--operator-class",
        metavar="NAME",
        help=f"reconcile the resources whose label {names.LABEL_OPERATOR_CLASS} is NAME, and no "
        "others (those without the label)",
    )
    parser.add_argument(
        "--engine-image", metavar="IMAGE", help="engine image if spec.engine.image is not set"
    )
    parser.add_argument("--router-image", metavar="IMAGE", help="image of routers")
    parser.add_argument(
        "--vllm-image", metavar="IMAGE", help="default image of engines with engine.runtime VLLM"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig of the cluster")
    parser.add_argument("--health-port", type=int, metavar="PORT", help="port of /healthz (8080)")
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="port of /metrics (9090)")
    parser.add_argument("--workers", type=int, metavar="N", help="concurrent reconciles (8)")
    parser.add_argument(
        "--resync-seconds", type=float, metavar="S", help="full resync interval (300)"
    )
    parser.add_argument(
        "--start-timeout-seconds",
        type=float,
        metavar="S",
        help="retry failed checks at start for this long (60)",
    )
    parser.add_argument(
        "--leader-election",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="reconcile only while holding a Lease, so that several replicas may run (default)",
    )
    parser.add_argument(
        "--lease-namespace", metavar="NS", help="namespace of the Lease (the pod's own)"
    )
    parser.add_argument("--lease-name", metavar="NAME", help="name of the Lease")
    parser.add_argument(
        "--identity", metavar="NAME", help="holder identity in the Lease (the pod's name)"
    )
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    parser.add_argument("--log-format", choices=("json", "text"))
    _add_policies(parser)
    parser.set_defaults(action=_run)


def _add_policies(parser: ArgumentParser) -> None:
    """Flags about what custom resources may contain, and how pods are replaced."""
    parser.add_argument(
        "--template",
        dest="has_template",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="accept spec.template and spec.router.template in custom resources (default)",
    )
    parser.add_argument(
        "--template-host-access",
        dest="allows_host_access",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let these templates name a ServiceAccount, privileged containers, and the network, "
        "processes or folders of nodes",
    )
    parser.add_argument(
        "--routers",
        dest="has_routers",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="accept spec.router in custom resources (default)",
    )
    parser.add_argument(
        "--inference-pools",
        dest="has_inference_pools",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="accept spec.inferencePool in custom resources (default)",
    )
    parser.add_argument(
        "--trials",
        dest="has_trials",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="run trials (default); without, engines keep the configuration in force",
    )
    parser.add_argument(
        "--upgrade-policy",
        choices=("Pinned", "Roll"),
        help="what a new default engine image does where engine.upgradePolicy is absent (Pinned)",
    )
    parser.add_argument(
        "--max-concurrent-rollouts",
        type=int,
        metavar="N",
        help="resources that replace their pods for a new default engine image at a time (2)",
    )


def _add_render(parser: ArgumentParser) -> None:
    parser.add_argument("-f", "--file", required=True, help="YAML file, or - for standard input")
    parser.add_argument(
        "--image", metavar="IMAGE", help="engine image if spec.engine.image is not set"
    )
    parser.set_defaults(action=_render)


def _add_boot(parser: ArgumentParser) -> None:
    parser.add_argument("-f", "--file", required=True, help="YAML file, or - for standard input")
    parser.add_argument(
        "--models", type=Path, metavar="DIR", help="local folder in place of every PVC"
    )
    parser.set_defaults(action=_boot)


def _add_replay(parser: ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="a SpecDecodeTrial or a list of them as YAML or JSON, or - for standard input",
    )
    source.add_argument("--trial", metavar="NAME", help="a SpecDecodeTrial of the cluster")
    parser.add_argument("-n", "--namespace", metavar="NS", help="namespace of --trial")
    parser.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig of the cluster")
    parser.set_defaults(action=_replay)


def _add_check(parser: ArgumentParser) -> None:
    parser.add_argument("--health", metavar="URL", help="health endpoint of the operator")
    parser.add_argument(
        "-n",
        "--namespace",
        default="default",
        metavar="NS",
        help="namespace of the dry runs (default)",
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig of the cluster")
    parser.set_defaults(action=_check)


def _run(options: argparse.Namespace) -> int:
    # Imported here: Kopf and the client take seconds to import, and `render` needs neither.
    from specdecode_operator.process.run import run

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
    settings = from_environment()
    images = options.image or settings.engine_image, settings.router_image, settings.vllm_image
    sys.stdout.write(render.render(options.file, _text(options.file), *images))
    return 0


def _replay(options: argparse.Namespace) -> int:
    from specdecode_operator.commands import replay
    from specdecode_operator.plugin.errors import PluginError

    try:
        found = replay.replay(*_recorded_trial(options))
    except (replay.ReplayError, PluginError, OSError, UnicodeDecodeError) as error:
        print(f"specdecode-operator: {error}", file=sys.stderr)
        return REFUSED
    for line in replay.lines(found):
        print(line)
    return 0 if all(each.is_same for each in found) else FAILED


def _recorded_trial(options: argparse.Namespace) -> tuple[str, str]:
    """Where a trial was read, and its text."""
    if options.trial is None:
        return options.file, _text(options.file)
    from specdecode_operator.plugin.saved_trial import saved_trial

    text = asyncio.run(saved_trial(options.kubeconfig, options.namespace, options.trial))
    return options.trial, text


def _boot(options: argparse.Namespace) -> int:
    sys.stdout.write(render.boot(options.file, _text(options.file), options.models))
    return 0


def _convert(options: argparse.Namespace) -> int:
    command.run_convert(options)
    return 0


def _check(options: argparse.Namespace) -> int:
    from specdecode_operator.commands import check

    kubeconfig = options.kubeconfig or from_environment().kubeconfig
    findings = asyncio.run(check.check(kubeconfig, options.namespace, options.health))
    for finding in findings:
        print(finding)
    return 0 if all(finding.is_good for finding in findings) else FAILED


def _text(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
