"""API keys on the command line and in the environment: taken, digested and forgotten."""

import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from specdecode_engine import __main__ as engine_main
from specdecode_engine.cli.api_key_flags import take_api_keys
from specdecode_engine.process import ConfigurationError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "models"
START_SECONDS = 120
KEY, OTHER, FROM_ENVIRONMENT = "sk-canary-5c1e", "sk-canary-77b0", "sk-canary-e901"


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        (("--api-key", KEY), [KEY]),
        ((f"--api-key={KEY}",), [KEY]),
        (("--api_key", KEY), [KEY]),
        (("--api-key", KEY, OTHER), [KEY, OTHER]),
        (("--api-key", KEY, "--api-key", OTHER), [KEY, OTHER]),
        (("--api-key=-begins-with-a-hyphen",), ["-begins-with-a-hyphen"]),
        ((), []),
    ],
)
def test_keys_are_taken_wherever_they_stand(given: tuple[str, ...], keys: list[str]) -> None:
    for before, after in (((), ("--port", "1")), (("--port", "1"), ())):
        kept, digests = take_api_keys((*before, *given, *after), {})
        assert kept == ["--port", "1"]
        assert digests == {digest(key) for key in keys}


def test_the_variable_has_a_key_per_line_and_is_removed() -> None:
    environment = {"SPECDECODE_API_KEY": f"{KEY}\n{OTHER}\n", "HOME": "/"}
    kept, digests = take_api_keys(["--api-key", FROM_ENVIRONMENT], environment)
    assert (kept, environment) == ([], {"HOME": "/"})
    assert digests == set(map(digest, (KEY, OTHER, FROM_ENVIRONMENT)))


def test_other_flags_of_a_similar_name_stay() -> None:
    given = ["--api-key-file", "/keys"]
    assert take_api_keys(given, {}) == (given, frozenset())


@pytest.mark.parametrize(
    ("given", "variable", "message"),
    [
        (("--api-key",), None, "--api-key: a key is missing"),
        (("--api-key", "--port", "1"), None, "--api-key: a key is missing"),
        (("--api-key=",), None, "key 1 of 1 in --api-key is empty"),
        (("--api-key", KEY, "käy"), None, "key 2 of 2 in --api-key is empty, or has"),
        ((f"--api-key={KEY} {OTHER}",), None, "key 1 of 1 in --api-key"),
        ((), "", "key 1 of 1 in SPECDECODE_API_KEY is empty"),
        ((), f"{KEY}\n\n", "key 2 of 2 in SPECDECODE_API_KEY is empty"),
    ],
)
def test_an_unusable_key_is_refused_without_its_value(
    given: tuple[str, ...], variable: str | None, message: str
) -> None:
    environment = {} if variable is None else {"SPECDECODE_API_KEY": variable}
    with pytest.raises(ConfigurationError) as refusal:
        take_api_keys(given, environment)
    assert message in str(refusal.value)
    assert "canary" not in str(refusal.value)
    assert "käy" not in str(refusal.value)


@contextmanager
def engine(log: Path, *flags: str, **environment: str) -> Iterator[str]:
    """Run an engine with the example model within the body; yields its address once it answers."""
    command = [sys.executable, "-m", "specdecode_engine", "--model-path", str(EXAMPLES / "target")]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--device", "cpu", "--port", "0", "--management-port", "0", *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
    try:
        deadline_s = time.monotonic() + START_SECONDS
        while not (found := re.search(r"listening on \S+ port (\d+)", log.read_text())):
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.05)
        url = f"http://127.0.0.1:{found[1]}"
        while httpx.get(f"{url}/ready", timeout=10).status_code != 200:
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def test_an_engine_answers_each_key_and_shows_none(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{OTHER}\n")
    flags = ("--api-key", KEY, "--api-key-file", str(tmp_path / "keys"))
    log, shown = tmp_path / "log", list[str]()
    with engine(log, *flags, SPECDECODE_API_KEY=FROM_ENVIRONMENT) as url:

        def status(**headers: str) -> int:
            body = {"prompt": "the fox", "max_tokens": 1}
            answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
            shown.append(answer.text)
            return answer.status_code

        for key in (KEY, OTHER, FROM_ENVIRONMENT):
            assert status(Authorization=f"Bearer {key}") == 200
            assert status(**{"x-api-key": key}) == 200
        assert status() == 401
        assert status(Authorization="Bearer sk-canary-wrong") == 401
        assert status(**{"x-api-key": "sk-canary-wrong"}) == 401
        assert status(Authorization="Bearer sk-canary-wrong", **{"x-api-key": KEY}) == 401
        shown += [httpx.get(f"{url}{path}").text for path in ("/server_info", "/metrics")]
    assert "canary" not in "".join([*shown, log.read_text()])


SHOW = """
import multiprocessing, os, sys
from specdecode_engine import __main__ as main
from specdecode_engine.serve import server

def show(boot, *_, api_keys, **__):
    print(sys.argv, sys.orig_argv, dict(os.environ), boot.model_dump_json(), len(api_keys))
    return 0

server.serve = show
sys.exit(main.main())
"""


def test_nothing_that_a_child_inherits_has_a_key() -> None:
    model = ("--model-path", str(EXAMPLES / "target"), "--port", "0", "--management-port", "0")
    flags = (*model, "--api-key", KEY, OTHER, f"--api-key={KEY}2")
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *flags],
        env=os.environ | {"SPECDECODE_API_KEY": FROM_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.rstrip().endswith(" 4")
    assert "canary" not in done.stdout + done.stderr
    assert "other users of this machine can read the arguments" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--api-ke", KEY), "--api-ke is an abbreviation: write --api-key or --api-key-file"),
        (("--api-kye", KEY), "unrecognized arguments: --api-kye, words that belong to no flag"),
        (("--apikey=" + KEY,), "unrecognized arguments: --apikey"),
        (("--model-pat", "/m"), "--model-pat is an abbreviation: write --model-path"),
        (("--api-key", KEY, "--prot", "1"), "unrecognized arguments: --prot"),
    ],
)
def test_a_mistyped_flag_does_not_show_the_key(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        engine_main.main(["--model-path", "/m", *flags])
    shown = "".join(capsys.readouterr())
    assert message in shown
    assert "canary" not in shown
