"""A key that is given to the wrong flag is not repeated: not by the engine, not by the router."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specdecode_api.peer_flags import read_peer_flags
from specdecode_engine.cli import flags
from specdecode_engine.cli.peers.reader import read_peer_flags_of
from specdecode_engine.process import ConfigurationError
from specdecode_router import settings
from specdecode_router.router_token import NoToken, read_token
from specdecode_server.api_keys import ApiKeyStore, NoApiKeys

MARK = "sk-canary"
KEYS = [f"{MARK}-{number:02}-5c1e77b0" for number in range(20)]
READ = "--model-path", "/models/target"
Shown = Callable[..., str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Shown:
    """What a program prints and logs about its flags."""

    def of(parse: Callable[[list[str]], object], *words: str) -> str:
        error = ""
        with caplog.at_level(logging.DEBUG):
            try:
                parse([*words])
            except ConfigurationError as found:
                error = str(found)
            except SystemExit:
                error = "usage"
        printed = capsys.readouterr()
        return error + printed.out + printed.err + caplog.text

    return of


def given(names: list[str]) -> Iterator[tuple[str, ...]]:
    for number, name in enumerate(names):
        key = KEYS[number % len(KEYS)]
        yield name, key
        yield (f"{name}={key}",)


def parse_and_log(words: list[str]) -> object:
    return flags.parse_flags(words, log_warnings=True)


def test_no_flag_of_the_engine_repeats_a_key(shown: Shown) -> None:
    names = sorted(flags._parser().flags - {"--help", "-h"})
    assert len(names) > 60
    for words in given(names):
        assert MARK not in shown(parse_and_log, *READ, *words), words


def test_no_flag_of_a_peer_repeats_a_key() -> None:
    own = flags._parser().flags
    names = sorted(read_peer_flags().by_spelling())
    assert len(names) > 400
    words = [word for each in given(names) for word in each]
    read = read_peer_flags_of(words, own)
    assert len(read.mistakes) + len(read.notes) > 300
    assert [each for each in (*read.mistakes, *read.notes) if MARK in each] == []


def test_no_flag_of_the_router_repeats_a_key(shown: Shown) -> None:
    names = sorted(settings._parser().flags - {"--help", "-h"})
    assert len(names) > 10
    for words in given(names):
        least = ("--engines", "127.0.0.1:8001", "--token-file", "token")
        assert MARK not in shown(settings.parse_flags, *least, *words), words


@pytest.mark.parametrize("key", KEYS[:2])
def test_a_key_in_place_of_a_file_is_not_repeated(key: str) -> None:
    with pytest.raises(NoApiKeys, match="cannot be read from <21 characters>"):
        ApiKeyStore(Path(key))
    with pytest.raises(NoToken, match="cannot be read from <21 characters>"):
        read_token(Path(key))
