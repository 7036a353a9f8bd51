"""A release publishes nothing before everything is made, and can be continued."""

import os
import subprocess
from datetime import date
from pathlib import Path

import pytest
import yaml

from localnode.paths import Paths
from localnode.tools import install_more, missing_programs
from localnode.versions import LINTERS
from scripts.release_steps import steps
from scripts.release_steps.__main__ import main
from scripts.release_steps.chart import set_value
from scripts.release_steps.errors import ReleaseError
from scripts.release_steps.images import chosen_images
from scripts.release_steps.notes import write_notes
from scripts.release_steps.publish import Registry, Signing
from scripts.release_steps.source import Source, prepare
from scripts.release_steps.steps import STEPS, Made, Plan, Step, run_steps

ROOT = Path(__file__).resolve().parents[2]
TODAY = date(2026, 11, 23)
VERSION = "9.0.0"


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare repository whose only branch, `main`, is at this commit."""
    folder = tmp_path_factory.mktemp("published")
    git(folder, "init", "--quiet", "--bare", "--initial-branch", "main")
    git(ROOT, "push", "--quiet", str(folder), "HEAD:refs/heads/main")
    return folder


@pytest.fixture
def checkout(published: Path, tmp_path: Path) -> Path:
    """A clone of this commit, whose `origin` is a bare repository."""
    origin, folder = tmp_path / "origin.git", tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", "--bare", str(published), str(origin))
    git(tmp_path, "clone", "--quiet", str(origin), str(folder))
    return folder


def commits_of(checkout: Path) -> str:
    return git(checkout, "ls-remote", "origin")


def test_a_release_is_a_commit_and_a_tag_that_nobody_sees_until_they_are_pushed(
    checkout: Path, tmp_path: Path
) -> None:
    before = commits_of(checkout)
    source = prepare(checkout, "main", VERSION, TODAY, tmp_path / "source")
    assert commits_of(checkout) == before
    assert git(checkout, "status", "--porcelain") == ""
    assert git(source.folder, "log", "-1", "--format=%s") == f"Release {VERSION}"
    changed = git(source.folder, "show", "--name-only", "--format=", "HEAD").split()
    assert {"CHANGELOG.md", "charts/specdecode/Chart.yaml", "uv.lock"} < set(changed)
    assert source.changes() in git(
        source.folder, "tag", "-l", "--format=%(contents)", f"v{VERSION}"
    )
    source.push("main")
    after = commits_of(checkout)
    assert f"{source.commit()}\trefs/heads/main" in after
    assert f"refs/tags/v{VERSION}" in after


def test_a_pushed_release_is_continued_from_its_tag(checkout: Path, tmp_path: Path) -> None:
    first = prepare(checkout, "main", VERSION, TODAY, tmp_path / "first")
    first.push("main")
    before = commits_of(checkout)
    again = prepare(checkout, "main", VERSION, date(2027, 1, 1), tmp_path / "again")
    assert again.is_resumed
    assert (again.commit(), again.changes()) == (first.commit(), first.changes())
    again.push("main")
    assert commits_of(checkout) == before


def test_a_checkout_with_commits_of_its_own_is_refused(checkout: Path, tmp_path: Path) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git(checkout, *author, "commit", "--quiet", "--allow-empty", "--message", "local")
    with pytest.raises(ReleaseError, match=r"HEAD is .*, main of origin is .*: check out main"):
        prepare(checkout, "main", VERSION, TODAY, tmp_path / "source")


def test_a_push_that_is_refused_changes_nothing(checkout: Path, tmp_path: Path) -> None:
    source = prepare(checkout, "main", VERSION, TODAY, tmp_path / "source")
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git(checkout, *author, "commit", "--quiet", "--allow-empty", "--message", "meanwhile")
    git(checkout, "push", "--quiet", "origin", "HEAD:main")
    before = commits_of(checkout)
    with pytest.raises(ReleaseError, match=r"git push --atomic origin .* failed"):
        source.push("main")
    assert commits_of(checkout) == before


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    registry = Registry("127.0.0.1:1/none", tmp_path, tmp_path / "helm", Signing())
    source = Source(ROOT, ROOT, VERSION, is_resumed=False)
    return Plan(source, "main", chosen_images(["operator"]), ["linux/amd64"], registry, tmp_path)


@pytest.mark.parametrize("failing", range(len(STEPS)), ids=[step.name for step in STEPS])
def test_a_step_that_fails_is_named_with_what_is_published(
    failing: int, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def stand_in(number: int, step: Step) -> Step:
        def act(_plan: Plan, _made: Made) -> None:
            ran.append(step.name)
            if number == failing:
                raise ReleaseError("the reason")

        return Step(step.name, act, step.after_failure)

    replaced = tuple(stand_in(number, step) for number, step in enumerate(STEPS))
    monkeypatch.setattr(steps, "STEPS", replaced)
    with pytest.raises(ReleaseError) as failed:
        run_steps(plan, lambda _line: None)
    step = STEPS[failing]
    wanted = f"step {failing + 1} of {len(STEPS)}, {step.name}: the reason\n{step.after_failure}"
    assert str(failed.value) == wanted
    assert ran == [step.name for step in STEPS[: failing + 1]]


def test_everything_is_made_and_signed_before_anything_has_a_name() -> None:
    names = [step.name for step in STEPS]
    assert names.index("sign images") < names.index("publish the source")
    assert names.index("publish the source") < names.index("publish the chart")
    assert names.index("publish the chart") < names.index("tag images")
    assert all(
        "nothing" in step.after_failure for step in STEPS[: names.index("publish the chart")]
    )


def test_a_registry_that_cannot_be_reached_stops_the_push(plan: Plan) -> None:
    with pytest.raises(ReleaseError, match=r"cannot run .*crane"):
        plan.registry.tag_image("127.0.0.1:1/none@sha256:0", VERSION)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the version is missing"),
        (["9.0.0"], "--registry HOST/OWNER is missing"),
        (["9.0.0", "--registry", "r.example/o"], "give --key and --public-key, or --identity"),
        (["9.0.0", "--registry", "r.example/o", "--key", "k"], "--public-key is missing"),
        (["9.0.0", "--registry", "r.example/o", "--images", "operator"], "are for --dry-run"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert reason in capsys.readouterr().err


def test_values_are_pinned_and_comments_stay() -> None:
    text = (ROOT / "charts" / "specdecode" / "values.yaml").read_text()
    changed = text
    paths = ("image.registry", "image.digest", "engine.image.registry", "engine.image.digest")
    for path in paths:
        changed = set_value(changed, path, f"value of {path}")
    values = yaml.safe_load(changed)
    for section, prefix in (
        (values["image"], "image"),
        (values["engine"]["image"], "engine.image"),
    ):
        assert section["registry"] == f"value of {prefix}.registry"
        assert section["digest"] == f"value of {prefix}.digest"
    lines = list(zip(text.splitlines(), changed.splitlines(), strict=True))
    assert len([pair for pair in lines if pair[0] != pair[1]]) == len(paths)
    with pytest.raises(ReleaseError, match=r"no value image\.none on one line"):
        set_value(text, "image.none", "x")
    with pytest.raises(ReleaseError, match="no value image on one line"):
        set_value(text, "image", "x")


def test_notes_name_the_digest_of_each_bill_of_materials(checkout: Path, tmp_path: Path) -> None:
    source = prepare(checkout, "main", VERSION, TODAY, tmp_path / "source")
    registry = Registry("r.example/o", tmp_path, tmp_path, Signing(public_key="k.pub"))
    images, manifests = {"operator": "r@sha256:1"}, {"operator linux/arm64": "r@sha256:2"}
    text = write_notes(source, registry, images, manifests, "charts@sha256:3")
    lines = text.splitlines()
    signed, billed = (at for at, line in enumerate(lines) if line.endswith(":"))
    assert {"| operator | `r@sha256:1` |", "| chart | `charts@sha256:3` |"} <= set(
        lines[signed:billed]
    )
    assert "| operator linux/arm64 | `r@sha256:2` |" in lines[billed:]
    assert "$ cosign verify-attestation --key cosign.pub --type cyclonedx NAME@DIGEST" in lines
    assert source.changes() in text
    assert f"oci://r.example/o/charts/specdecode --version {VERSION}" in text


@pytest.mark.apiserver
def test_actionlint_accepts_the_workflow() -> None:
    """It needs no API server, but a program that `make cluster-tools` builds."""
    paths = Paths.from_environment()
    missing = missing_programs(paths, LINTERS)
    if missing and os.environ.get("CI"):
        pytest.fail("run `make cluster-tools` first: actionlint is missing")
    program = install_more(paths, LINTERS) / "actionlint"
    workflow = ROOT / ".github" / "workflows" / "release.yaml"
    words = [str(program), "-shellcheck=", "-pyflakes=", str(workflow)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_workflow_calls_the_script_and_nothing_else() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[0] == "scripts/setup"
    assert [command.split()[0] for command in commands[1:]] == ["scripts/release"]
    assert workflow["permissions"] == {
        "contents": "write",
        "packages": "write",
        "id-token": "write",
    }
