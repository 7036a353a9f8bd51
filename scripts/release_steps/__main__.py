"""Releases a version: makes and checks everything, signs it, publishes it.

Without --dry-run it pushes to --registry and to the remote `origin`. A dry run does the same with a
registry on this machine, a throwaway key and a copy of the repository, and pulls everything back.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from localnode.errors import NodeError
from localnode.paths import Paths
from localnode.tools import install_more
from localnode.versions import CHARTS, RELEASES
from scripts.release_steps import dry_run
from scripts.release_steps.commands import run
from scripts.release_steps.errors import ReleaseError
from scripts.release_steps.images import RELEASED_IMAGES, chosen_images
from scripts.release_steps.lock import PLATFORMS
from scripts.release_steps.publish import Registry, Signing, throwaway_key
from scripts.release_steps.publish import verify_with_another_key_fails as refuses_another_key
from scripts.release_steps.source import dirty_files, prepare
from scripts.release_steps.steps import Made, Plan, run_steps
from scripts.release_steps.versions import current_version, next_version

ROOT = Path(__file__).resolve().parents[2]
USER, PASSWORD = "REGISTRY_USER", "REGISTRY_PASSWORD"


def main(arguments: Sequence[str] | None = None) -> int:
    """Release, or rehearse; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        _check_options(options)
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            (_rehearse if options.dry_run else _release)(options, Path(folder))
    except (ReleaseError, NodeError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _release(options: argparse.Namespace, folder: Path) -> None:
    if changed := dirty_files(ROOT):
        raise ReleaseError(f"uncommitted changes in {changed}: commit or stash them")
    programs, helm = _programs()
    signing = Signing(options.key, options.public_key, options.identity, options.issuer)
    registry = Registry(options.registry, programs, helm, signing)
    if os.environ.get(USER):
        registry.log_in(os.environ[USER], os.environ.get(PASSWORD, ""))
    plan = _plan(options, ROOT, registry, folder)
    run_steps(plan, _report)
    _keep(folder, options)


def _rehearse(options: argparse.Namespace, folder: Path) -> None:
    if changed := dirty_files(ROOT):
        _report(f"  not part of the dry run, as it is not committed: {', '.join(changed)}")
    programs, helm = _programs()
    key = folder / "key"
    key.mkdir()
    checkout = dry_run.checkout_of_copy(ROOT, folder)
    with dry_run.loopback_registry(programs, folder) as address:
        signing = throwaway_key(programs, key)
        environment = {"COSIGN_PASSWORD": ""}
        registry = Registry(f"{address}/specdecode", programs, helm, signing, True, environment)
        plan = _plan(options, checkout, registry, folder)
        _report(f"  {plan.source.version} from {plan.source.commit()[:12]} to {registry.address}")
        made = run_steps(plan, _report)
        _check_published(plan, made, folder)
    _keep(folder, options)


def _check_published(plan: Plan, made: Made, folder: Path) -> None:
    """Do what a user does: pull the chart, find tags, verify signatures."""
    registry, version = plan.registry, plan.source.version
    assert made.package is not None
    pulled = folder / "pulled"
    pulled.mkdir()
    if registry.pull_chart(version, pulled) != made.package.read_bytes():
        raise ReleaseError("the chart that helm pulls is not the one that was pushed")
    rendered = run([registry.helm, "template", "release", made.package])
    for name in {"operator", "engine"} & set(made.references):
        if made.references[name] not in rendered:
            raise ReleaseError(f"the chart does not name {made.references[name]}")
    for image in plan.images:
        if not registry.holds(image.repository, image.tag(version)):
            raise ReleaseError(f"{image.repository}:{image.tag(version)} cannot be found")
    for reference in (*made.references.values(), made.chart_reference):
        if not refuses_another_key(registry, reference):
            raise ReleaseError(f"{reference} is verified by a key that did not sign it")
    _report("  pulled, found by tag, verified by its key and refused under another")


def _plan(options: argparse.Namespace, checkout: Path, registry: Registry, folder: Path) -> Plan:
    today = datetime.now(UTC).date()
    source = prepare(checkout, dry_run.BRANCH, options.version, today, folder / "source")
    images = chosen_images(options.images)
    return Plan(source, dry_run.BRANCH, images, options.platforms, registry, folder)


def _programs() -> tuple[Path, Path]:
    """Build crane, cosign and Helm where they are missing."""
    paths = Paths.from_environment()
    return install_more(paths, RELEASES), install_more(paths, CHARTS) / "helm4"


def _keep(folder: Path, options: argparse.Namespace) -> None:
    """Copy notes, bills of materials and the chart to dist/VERSION."""
    kept = Path(options.output) / options.version
    kept.mkdir(parents=True, exist_ok=True)
    for pattern in ("notes.md", "*.cdx.json", "specdecode-*.tgz", "key/cosign.pub"):
        for file in folder.glob(pattern):
            (kept / file.name).write_bytes(file.read_bytes())
    _report(f"  notes, bills of materials and the chart are in {kept}")


def _check_options(options: argparse.Namespace) -> None:
    if options.version is None:
        if not options.dry_run:
            raise ReleaseError("the version is missing, such as 0.2.0")
        options.version = next_version(current_version(ROOT))
    if options.dry_run:
        return
    if not options.registry:
        raise ReleaseError("--registry HOST/OWNER is missing; --dry-run needs none")
    if options.images or options.platforms != list(PLATFORMS):
        raise ReleaseError("--images and --platforms are for --dry-run: a release has all of them")
    if bool(options.key) == bool(options.identity and options.issuer):
        raise ReleaseError("give --key and --public-key, or --identity and --issuer to sign in CI")
    if options.key and not options.public_key:
        raise ReleaseError("--public-key is missing: what was signed is verified with it")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="scripts/release", description=__doc__
    )
    parser.add_argument(
        "version", nargs="?", help="such as 0.2.0 or 0.2.0-rc.1; a dry run takes the next minor one"
    )
    parser.add_argument("--dry-run", action="store_true", help="publish to this machine only")
    parser.add_argument("--registry", help="where to push, such as ghcr.io/OWNER")
    parser.add_argument("--key", help="private key: a file, or a KMS URI of cosign")
    parser.add_argument("--public-key", help="file or KMS URI of the public key")
    parser.add_argument("--identity", help="regular expression of the identity that signs in CI")
    parser.add_argument("--issuer", help="URL of the OIDC issuer of that identity")
    names = ", ".join(image.name for image in RELEASED_IMAGES)
    parser.add_argument("--images", nargs="*", default=[], help=f"of {names}; all by default")
    parser.add_argument("--platforms", nargs="*", default=list(PLATFORMS), choices=list(PLATFORMS))
    parser.add_argument("--output", default=ROOT / "dist", help="folder for notes and bills")
    parser.add_argument("--folder", help="where images are built; the system's temporary folder")
    return parser


def _report(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
