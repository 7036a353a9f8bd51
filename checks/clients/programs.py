"""The client programs: their environments, and the results of their checks."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from checks.harness.installation import PeerUnavailable, default_cache, ensure_environment

HERE = Path(__file__).resolve().parent
LOCKS, PROGRAMS, NPM = HERE / "locks", HERE / "programs", HERE / "npm"
INSTALL_SECONDS = 600
RUN_SECONDS = 900
SHOWN_CHARS = 400


@dataclass(frozen=True, slots=True)
class ClientProgram:
    """A program that runs with an environment.

    Attributes:
        name: as in the table.
        package: whose version is shown.
        file: of the program; `.mjs` runs in node.
        lock: name of the environment of a Python program.
        shows_all: the prompt has the whole conversation and the tools; else the last message, for
            a client whose instructions are longer than the example model's context.
    """

    name: str
    package: str
    file: str
    lock: str = ""
    shows_all: bool = True


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of a client; `error` is "" if it passed."""

    check: str
    error: str


@dataclass(frozen=True, slots=True)
class ClientResult:
    """What a client did; `unavailable` is why it could not be installed."""

    client: ClientProgram
    version: str = ""
    checks: tuple[CheckResult, ...] = ()
    unavailable: str = ""

    def has_passed(self) -> bool:
        return bool(self.checks) and not any(check.error for check in self.checks)


CLIENTS = (
    ClientProgram("openai (Python)", "openai", "openai_python.py", "openai"),
    ClientProgram("openai (npm)", "openai", "openai.mjs"),
    ClientProgram("anthropic (Python)", "anthropic", "anthropic_python.py", "anthropic"),
    ClientProgram("@anthropic-ai/sdk (npm)", "@anthropic-ai/sdk", "anthropic.mjs"),
    ClientProgram("ai with @ai-sdk/anthropic and @ai-sdk/openai", "ai", "ai_native.mjs"),
    ClientProgram(
        "langchain-anthropic",
        "langchain-anthropic",
        "langchain_anthropic_tools.py",
        "langchain-anthropic",
    ),
    ClientProgram("openai-agents", "openai-agents", "openai_agents_runs.py", "openai-agents"),
    ClientProgram("langchain-openai", "langchain-openai", "langchain_openai_tools.py", "langchain"),
    ClientProgram("instructor", "instructor", "instructor_modes.py", "instructor"),
    ClientProgram("@openai/codex (npm)", "@openai/codex", "codex.mjs", shows_all=False),
    ClientProgram("ai (npm, Vercel)", "ai", "ai.mjs"),
    ClientProgram("litellm proxy", "litellm", "litellm_proxy.py", "litellm"),
    ClientProgram("lm-eval", "lm-eval", "lm_eval_tasks.py", "lm-eval"),
    ClientProgram("guidellm", "guidellm", "guidellm_benchmark.py", "guidellm"),
    ClientProgram("schemathesis", "schemathesis", "schemathesis_run.py", "schemathesis"),
)


def run_client(client: ClientProgram, url: str, tokenizer: Path) -> ClientResult:
    """Install a client, unless it is there, and run its program."""
    version = locked_version(client)
    try:
        command = _command(client)
    except PeerUnavailable as reason:
        return ClientResult(client, version, unavailable=str(reason))
    try:
        done = subprocess.run(
            [*command, url, str(tokenizer)],
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            env=client_environment(os.environ),
        )
    except subprocess.TimeoutExpired:
        return ClientResult(client, version, (CheckResult("run", f"over {RUN_SECONDS} s"),))
    checks = read_checks(done.stdout)
    if not checks or (done.returncode and not any(check.error for check in checks)):
        checks += (CheckResult("run", done.stderr.strip()[-SHOWN_CHARS:] or "no output"),)
    return ClientResult(client, version, checks)


def read_checks(output: str) -> tuple[CheckResult, ...]:
    """Return the checks that a program has printed, a line of JSON each."""
    lines = [line for line in output.splitlines() if line.startswith('{"check"')]
    found = [json.loads(line) for line in lines]
    return tuple(CheckResult(each["check"], each["error"]) for each in found)


def locked_version(client: ClientProgram) -> str:
    """Return the version of a client in its lock."""
    if not client.lock:
        lock = json.loads((NPM / "package-lock.json").read_text())
        return str(lock["packages"][f"node_modules/{client.package}"]["version"])
    found = re.search(
        rf"^{client.package}(?:\[[^\]]*\])?==(\S+)",
        (LOCKS / f"{client.lock}.txt").read_text(),
        re.M,
    )
    assert found is not None, f"{client.lock}.txt has no {client.package}"
    return found[1]


def client_environment(outer: Mapping[str, str]) -> dict[str, str]:
    """No proxy, no downloads of models, and nothing to import but the client's environment."""
    kept = {k: v for k, v in outer.items() if k.lower() not in _PROXIES and k != "PYTHONPATH"}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DO_NOT_TRACK": "1",
    }


_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def _command(client: ClientProgram) -> list[str]:
    if client.lock:
        python = ensure_environment(LOCKS / f"{client.lock}.txt")
        return [str(python), str(PROGRAMS / client.file)]
    return ["node", str(ensure_node_modules() / client.file)]


def ensure_node_modules() -> Path:
    """Install the locked packages, unless they are there; return the folder with the programs.

    Raises:
        PeerUnavailable: npm is missing, or a package could not be fetched.
    """
    lock = (NPM / "package-lock.json").read_bytes()
    folder = default_cache() / f"clients-npm-{hashlib.sha256(lock).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    for file in NPM.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    if (folder / "node_modules" / ".package-lock.json").exists():
        return folder
    print(f"installing npm packages into {folder}", file=sys.stderr, flush=True)
    command = ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--silent")
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except FileNotFoundError:
        raise PeerUnavailable("npm is not installed") from None
    except subprocess.CalledProcessError as error:
        raise PeerUnavailable(f"npm ci: {error.stderr}"[:SHOWN_CHARS]) from None
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailable(f"npm ci: {error}"[:SHOWN_CHARS]) from None
    return folder
