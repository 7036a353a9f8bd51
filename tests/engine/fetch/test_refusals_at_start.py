"""What a start refuses: with one line, before torch is imported. One process drives all cases."""

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engine.fetch.conftest import FILES

PROGRAM = """
import contextlib, io, json, sys
from specdecode_engine.__main__ import main
for words in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stderr(out):
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code
    heavy = [name for name in ("torch", "transformers") if name in sys.modules]
    print(json.dumps([code, out.getvalue(), heavy]))
"""
TARGET = Path(__file__).resolve().parents[3] / "examples" / "models" / "target"
TOKEN = "hf_canary-c0ffee"
NOT_A_FOLDER = "no such folder, and not a name of the Hugging Face Hub; give a folder with"
NAMES = {
    "path": (["serve", "/no/such"], f"/no/such: {NOT_A_FOLDER}"),
    "flag": (["--model-path", "no-such"], f"no-such: {NOT_A_FOLDER}"),
    "empty folder": (["serve", "."], "config.json: no such file; give a folder with config.json"),
    "long name": (["serve", "a" * 300], "aaa: File name too long; give a folder with"),
    "file": (["serve", "/etc/passwd"], "/etc/passwd: a file, not a folder; give a folder with"),
    "dots": (["serve", "org/.."], f"org/..: {NOT_A_FOLDER}"),
    "dots in a URI": (["serve", "hf://../tiny"], "hf://../tiny: not a model of the Hugging Face"),
    "dots in a revision": (["serve", "org/tiny@main/../x"], f"org/tiny@main/../x: {NOT_A_FOLDER}"),
    "two models": (["serve", "a/b", "--model-path", "c"], "serve a/b: --model-path names a model"),
    "unknown flag": (["serve", "org/tiny", "--xyzzy", "1"], "unrecognized arguments: --xyzzy"),
    "value": (["serve", "org/tiny", "--page-size", "3"], "page_size must be a power of two"),
    "no model": (["serve"], "there is no model: add --model-path FOLDER"),
}
HUB = {
    "rule of the Hub": (["serve", "org/tiny.git"], "hf://org/tiny.git: the hub has no such names"),
    "unknown": (["serve", "org/none"], "org/none: no such folder; hf://org/none: the hub has no"),
    "private": (
        ["serve", "hf://org/private"],
        "hf://org/private: the hub refuses the token (HTTP 401); use one that may read this model",
    ),
    "gated": (["serve", "org/gated"], "hf://org/gated: the model is gated (HTTP 403); accept its"),
    "revision": (["serve", "org/tiny@v2"], "hf://org/tiny@v2: the model has no such revision"),
    "disk": (
        ["serve", "org/full"],
        "no space is left for it ([Errno 28] No space left on device); free space there, or name a "
        "folder on another disk with HF_HOME",
    ),
    "draft": (
        ["serve", "org/tiny", "--speculative-algorithm", "STANDALONE",
         "--speculative-draft-model-path", "org/gated"],
        "hf://org/gated: the model is gated",
    ),
}  # fmt: skip
IN_USE = "Address already in use; end the process that uses the port, or choose another one with"
PORTS = {
    "port": (["serve", "org/tiny"], f"{IN_USE} --port (boot file: server.port)"),
    "port of a folder": (["serve", str(TARGET)], f"{IN_USE} --port (boot file: server.port)"),
    "default port": (
        ["serve", str(TARGET), "--port", "0"],
        f"127.0.0.1 port 8001: {IN_USE} --management-port (boot file: server.management_port)",
    ),
}
CASES = {**NAMES, **HUB, **PORTS}


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """The exit code, error and imported libraries of each case."""
    from tests.engine.fetch.hub_server import COMMIT, serving_hub

    folder = tmp_path_factory.mktemp("start")
    partial = folder / "specdecode" / "hf" / "org" / "full" / COMMIT / ".partial"
    partial.mkdir(parents=True)
    (partial / "model.safetensors").symlink_to("/dev/full")
    with serving_hub() as hub, socket.socket() as other, socket.socket() as default:
        for name in ("tiny", "full"):
            hub.add(f"org/{name}", FILES)
        hub.add("org/private", FILES, token="another")
        hub.add("org/gated", FILES, token="another", is_gated=True)
        other.bind(("127.0.0.1", 0))
        other.listen()
        in_use = str(other.getsockname()[1])
        free = ["--host", "127.0.0.1", "--port", "0", "--management-port", "0"]
        with suppress(OSError):  # then another process uses it
            default.bind(("127.0.0.1", 8001))
            default.listen()
        words = {name: given + free for name, (given, _) in (NAMES | HUB).items()}
        words["no model"] = ["serve"]
        shared = ["--host", "127.0.0.1", "--port", in_use, "--management-port", in_use]
        words |= {name: given + shared for name, (given, _) in PORTS.items()}
        words["default port"] = PORTS["default port"][0]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(list(words.values()))],
            env=os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder), "HF_TOKEN": TOKEN},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert hub.asked("org/tiny/resolve") == []
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return dict(zip(words, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_start_is_refused_before_torch_is_imported(case, refused):
    code, error, heavy = refused[case]
    assert (code, heavy) == (1 if case in PORTS else 2, [])
    assert CASES[case][1] in error
    assert len([line for line in error.splitlines() if "specdecode-engine: " in line]) == 1
