"""What is fetched is what an engine needs: the example models, from a hub to tokens."""

from pathlib import Path

import torch

from specdecode_api.model_uri import HubLocation
from specdecode_api.report import ModelRole
from specdecode_engine.fetch.download import Download, link
from specdecode_engine.fetch.hub import Hub
from specdecode_engine.fetch.progress import Counts
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.serve.text.loading import load_text_model

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "models"


def test_a_fetched_model_can_be_loaded_and_its_text_read(hub, tmp_path):
    source = EXAMPLES / "target"
    hub.add("org/target", {path.name: path.read_bytes() for path in source.iterdir()})
    uri = "hf://org/target"
    download = Download(
        ModelRole.TARGET,
        uri,
        HubLocation("org/target"),
        tmp_path / "cache",
        Hub(hub.url, None),
        Counts({ModelRole.TARGET: uri}),
    )
    place = tmp_path / "links" / "target"
    link(place, download.run())
    fetched = Llama.load(place, device=torch.device("cpu"))
    original = Llama.load(source, device=torch.device("cpu"))
    assert torch.equal(fetched.embedding, original.embedding)
    assert isinstance(fetched.head.weight, torch.Tensor)
    assert isinstance(original.head.weight, torch.Tensor)
    assert torch.equal(fetched.head.weight, original.head.weight)
    text = load_text_model(place)
    assert text.decode(text.encode("What is a draft?")) == "What is a draft?"
