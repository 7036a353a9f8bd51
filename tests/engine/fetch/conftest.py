"""Downloads from a hub that runs here."""

import pytest

from tests.engine.fetch.hub_server import serving_hub


@pytest.fixture
def hub():
    """The server, as long as the test runs."""
    with serving_hub() as found:
        yield found


FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"model": {}}',
    "model.safetensors": bytes(range(256)) * 600,
    "README.md": b"# not needed",
    "original/params.json": b"{}",
    "consolidated.safetensors": b"the same again" * 100,
}
NEEDED = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.fixture
def files():
    return dict(FILES)


@pytest.fixture
def large(files):
    """Weights of a size at which a broken transfer is kept: the hub's library writes 10 MiB."""
    files["model.safetensors"] = bytes(range(256)) * 100_000
    return files["model.safetensors"]


@pytest.fixture
def tiny(hub, files):
    """A public model of a few files, one of them large."""
    return hub.add("org/tiny", files)
