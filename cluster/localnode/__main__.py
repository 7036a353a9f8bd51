"""The commands: `PYTHONPATH=cluster uv run python -m localnode <command>`.

With CONTEXT=<name> in the environment they use that cluster of yours and start nothing.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from localnode import external, images, lifecycle
from localnode.errors import NodeError
from localnode.paths import Paths
from localnode.progress import report, step
from localnode.status import status_lines
from localnode.tools import install_more, install_test_packages, install_tools, programs
from localnode.versions import CHARTS, CHECKS, LINTERS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; failures that have a remedy are printed without a traceback."""
    chosen = _parser().parse_args(arguments)
    paths = Paths.from_environment()
    context = os.environ.get("CONTEXT")
    try:
        if context:
            return _with_context(chosen, paths, context)
        return _with_node(chosen, paths)
    except NodeError as failure:
        report(f"localnode: {failure}")
    except PermissionError as refused:
        report(f"localnode: {refused}: the node belongs to root, so use sudo")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="localnode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("tools", help="install and build the programs only")
    up = commands.add_parser("up", help="bring the whole node up")
    up.add_argument("--control-plane-only", action="store_true", help="no kubelet, no pods")
    commands.add_parser("down", help="take the node down and away")
    status = commands.add_parser("status", help="one line for each part")
    status.add_argument("--json", action="store_true")
    commands.add_parser("images", help="build the images and load them")
    load = commands.add_parser("load", help="load one image into the node")
    load.add_argument("image", help="an archive file, or the name of an image that docker has")
    commands.add_parser("kubeconfig", help="print the path of the kubeconfig file")
    commands.add_parser("env", help="print what a shell needs: eval the output")
    return parser


def _with_node(chosen: argparse.Namespace, paths: Paths) -> int:
    match chosen.command:
        case "tools":
            install_tools(paths)
            install_more(paths, CHECKS)
            install_more(paths, CHARTS)
            install_more(paths, LINTERS)
            install_test_packages(paths)
            print(programs(paths))
        case "up":
            parts = lifecycle.CONTROL_PLANE if chosen.control_plane_only else lifecycle.WHOLE_NODE
            with step("up"):
                lifecycle.up(paths, parts)
        case "down":
            lifecycle.down(paths)
        case "status":
            lines, healthy = status_lines(paths, as_json=chosen.json)
            print("\n".join(lines))
            return 0 if healthy else 1
        case "images":
            images.update_images(paths)
        case "load":
            images.load(paths, chosen.image)
        case "kubeconfig":
            print(paths.kubeconfig)
        case "env":
            print(f'export PATH="{programs(paths)}:$PATH" KUBECONFIG="{paths.kubeconfig}"')
    return 0


def _with_context(chosen: argparse.Namespace, paths: Paths, context: str) -> int:
    match chosen.command:
        case "tools":
            install_tools(paths)
            install_more(paths, CHECKS)
            install_more(paths, CHARTS)
            install_more(paths, LINTERS)
            install_test_packages(paths)
            print(programs(paths))
        case "up" | "status":
            external.adopt_cluster(paths, context)
        case "down":
            report(f"  {context} is yours: left as it is")
        case "images":
            external.update_images(context)
        case "load":
            external.load_image(context, chosen.image)
        case "kubeconfig":
            print(external.kubeconfig(paths, context))
        case "env":
            print(f'export KUBECONFIG="{external.kubeconfig(paths, context)}"')
    return 0


if __name__ == "__main__":
    sys.exit(main())
