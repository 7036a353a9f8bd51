"""What a name on the command line is: a folder, a model of the Hub, or wrong."""

import pytest

from specdecode_engine.cli.model_names import ModelRefused, hub_uri, with_model_flag
from specdecode_engine.process import ConfigurationError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_model(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("org/name", "hf://org/name"),
        ("Org/Name-1.5_b@v1.0", "hf://Org/Name-1.5_b@v1.0"),
        ("hf://org/name@" + "a" * 40, "hf://org/name@" + "a" * 40),
    ],
)
def test_a_name_of_the_hub_becomes_its_uri(name, uri):
    assert hub_uri(name) == uri


def test_a_folder_that_is_also_a_hub_name_is_the_folder(here):
    add_model(here / "org" / "name")
    assert hub_uri("org/name") is None
    assert hub_uri("../" + here.name + "/org/name") is None
    assert hub_uri("hf://org/name") == "hf://org/name"


@pytest.mark.parametrize(
    "name",
    [
        *("/no/such", "no-such", "./no/such", "org/", "org/..", "../name", "org/name/more"),
        *("hf://org", "hf://../name", "hf://org/name@main/../x", "hf://org/name@", "org/a b"),
        *("", "https://org/name", "org/name\n", "hf://org/name@a/.", "o..g/name"),
    ],
)
def test_a_name_that_is_neither_is_refused_with_the_forms(name):
    with pytest.raises(ModelRefused) as refused:
        hub_uri(name)
    assert name in str(refused.value)
    assert "ORG/NAME or hf://ORG/NAME@REVISION" in str(refused.value)
    assert refused.value.reason == "CheckpointInvalid"


def test_a_folder_without_a_model_is_refused_unless_its_format_is_known(here):
    (here / "org" / "name").mkdir(parents=True)
    with pytest.raises(ModelRefused, match=r"org/name/config\.json: no such file"):
        hub_uri("org/name")
    (here / "org" / "name" / "x.gguf").touch()
    assert hub_uri("org/name") is None


def test_serve_takes_the_model_first():
    assert with_model_flag(["org/name", "--port", "1"]) == [
        "--model-path",
        "org/name",
        "--port",
        "1",
    ]
    assert with_model_flag(["--port", "1"]) == ["--port", "1"]
    assert with_model_flag([]) == []
    for second in (["--model-path", "x"], ["--model-path=x"]):
        with pytest.raises(ConfigurationError, match="serve a/b: --model-path names a model too"):
            with_model_flag(["a/b", *second])
