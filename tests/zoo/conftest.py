"""Tiny checkpoints of model types that transformers computes, made once per run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.zoo.models import ZooModel, read_models
from tests.engine.checkpoints import make_checkpoints


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


MakeModel = Callable[[str], tuple[Path, Any]]


@pytest.fixture(scope="session")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random EAGLE-3 head for targets of the zoo's sizes."""
    return make_checkpoints(tmp_path_factory.mktemp("heads")).eagle3


@pytest.fixture(scope="session")
def models() -> dict[str, ZooModel]:
    return read_models()


@pytest.fixture(scope="session")
def make_model(models: dict[str, ZooModel], tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """Make a type's checkpoint once; return its folder and transformers' model of it."""
    made: dict[str, tuple[Path, Any]] = {}

    def make(name: str) -> tuple[Path, Any]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name) / "target"
            made[name] = folder, models[name].make(folder)
        return made[name]

    return make
