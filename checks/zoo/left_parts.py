"""Compares what is left to modules of transformers with the engine's table.

`make test-transformers` runs it in an environment of its own, with another release.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from tqdm import tqdm

from checks.zoo.models import REFUSED, ZooModel, read_models
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.left_parts import EXPECTED, parts_left
from specdecode_engine.model.transformers.loading import make_network
from specdecode_engine.model.transformers.model import TransformersModel


def parts_of(model: ZooModel, folder: Path) -> frozenset[str]:
    """Return what of a model is left, which is built on the meta device."""
    described = transformers.AutoConfig.for_model(model.model_type, **model.keys)
    described.save_pretrained(folder)
    config = TransformersConfig.load(folder)
    network = TransformersModel.audited(config, make_network(config, torch.float32))
    return parts_left(network._layers)


def main() -> int:
    """Print each model type with other parts than the table; 1 if there are any."""
    models = [model for model in read_models().values() if model.group != REFUSED]
    differences = []
    for model in tqdm(models, desc=f"transformers {transformers.__version__}"):
        with TemporaryDirectory() as folder:
            found = parts_of(model, Path(folder))
        expected = EXPECTED.get(model.model_type, frozenset())
        if found != expected:
            words = [sorted(parts) for parts in (found, expected)]
            differences.append(f"{model.name}: left are {words[0]}, expected are {words[1]}")
    print("\n".join([*differences, f"{len(models)} models, {len(differences)} differences"]))
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
