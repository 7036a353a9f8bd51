"""Every value of generation_config.json is read alike by `check`, at start and by the server."""

import shutil
from pathlib import Path

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.sampling_defaults import (
    LEAST_TOP_P,
    InvalidDefault,
    SamplingDefaults,
    read_sampling_defaults,
)
from specdecode_engine.startup.config import resolve
from specdecode_engine.startup.model_check import CheckOptions, check_pair

EXAMPLE = Path(__file__).parents[3] / "examples" / "models" / "target"

READ: dict[str, list[tuple[str, float]]] = {
    "temperature": [
        ("null", 1.0), ("0", 0.0), ("0.0", 0.0), ("-0.0", 0.0), ("0.6", 0.6), ("1", 1.0),
        ("2", 2.0),
    ],
    "top_p": [
        ("null", 1.0), ("0.95", 0.95), ("1", 1.0), ("1.0", 1.0), ("1.5", 1.0),
        ("1" + "0" * 400, 1.0), ("0", LEAST_TOP_P), ("0.0", LEAST_TOP_P),
        ("-1", LEAST_TOP_P), ("1e-300", LEAST_TOP_P),
    ],
    "top_k": [
        ("null", 0), ("-1", 0), ("0", 0), ("1", 1), ("50", 50), ("2147483647", 2147483647),
    ],
    "min_p": [("null", 0.0), ("0", 0.0), ("0.05", 0.05), ("1", 1.0)],
    "repetition_penalty": [("null", 1.0), ("1.0", 1.0), ("1.05", 1.05), ("0.5", 0.5), ("10", 10.0)],
    "presence_penalty": [("null", 0.0), ("1.5", 1.5), ("-2", -2.0)],
    "frequency_penalty": [("null", 0.0), ("-0.5", -0.5), ("2", 2.0)],
    "do_sample": [("null", 1.0), ("true", 1.0), ("false", 0.0)],
}  # fmt: skip
"""JSON texts of accepted values, and what they mean; for `do_sample` the temperature."""

REFUSED: dict[str, list[str]] = {
    "temperature": ["-0.1", "2.5", "NaN", "Infinity", '"0.7"', "true", "[0.7]"],
    "top_p": ["NaN", "-Infinity", '"0.9"', "false", "{}"],
    "top_k": ["-2", "2147483648", "50.0", "1.5", '"50"', "true"],
    "min_p": ["-0.1", "1.1", "NaN", '"0"'],
    "repetition_penalty": ["0", "-1", "10.1", "Infinity", "true"],
    "presence_penalty": ["2.1", "-3", '""'],
    "frequency_penalty": ["2.1", "NaN", "[]"],
    "do_sample": ["0", "1", '"false"'],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    shutil.copy(EXAMPLE / "config.json", place)
    return place


def write(folder: Path, text: str) -> None:
    (folder / "generation_config.json").write_text(text)


def outcomes(folder: Path) -> list[str]:
    """Return why `check` and the start of an engine refuse a folder; empty where they do not."""
    boot = EngineBoot.model_validate({"model": {"path": str(folder), "dtype": "float32"}})
    try:
        resolve(boot)
        at_start = ""
    except InvalidDefault as error:
        at_start = str(error)
    return ["\n".join(check_pair(folder, None, CheckOptions()).reasons), at_start]


def test_sixty_values_and_more_are_in_the_table() -> None:
    accepted = sum(len(values) for values in READ.values())
    assert accepted + sum(len(values) for values in REFUSED.values()) >= 60
    assert READ.keys() == REFUSED.keys()
    assert READ.keys() == {*SamplingDefaults.__dataclass_fields__, "do_sample"}


@pytest.mark.parametrize("key", READ)
def test_a_value_that_is_read_is_read_by_check_and_at_start(key: str, folder: Path) -> None:
    field = "temperature" if key == "do_sample" else key
    for text, meaning in READ[key]:
        write(folder, f'{{"{key}": {text}}}')
        assert getattr(read_sampling_defaults(folder), field) == meaning, text
        assert outcomes(folder) == ["", ""], text


@pytest.mark.parametrize("key", REFUSED)
def test_a_refusal_has_the_same_sentence_in_check_and_at_start(key: str, folder: Path) -> None:
    for text in REFUSED[key]:
        write(folder, f'{{"{key}": {text}}}')
        by_check, at_start = outcomes(folder)
        assert by_check == at_start
        assert by_check.startswith(
            f"{folder / 'generation_config.json'}: {key} is {text}; set it to"
        )
        with pytest.raises(InvalidDefault):
            read_sampling_defaults(folder)


@pytest.mark.parametrize("text", ["[]", "{", "\x00"])
def test_a_file_that_is_no_object_is_refused_by_name(text: str, folder: Path) -> None:
    write(folder, text)
    (reason,) = check_pair(folder, None, CheckOptions()).reasons
    assert str(folder / "generation_config.json") in reason
    with pytest.raises(InvalidDefault, match=r"generation_config\.json: .*; download it again"):
        read_sampling_defaults(folder)


def test_do_sample_false_is_greedy_whatever_the_temperature(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) == SamplingDefaults()
    write(tmp_path, '{"do_sample": false, "temperature": 0.7, "top_k": -1}')
    assert read_sampling_defaults(tmp_path) == SamplingDefaults(temperature=0.0)
