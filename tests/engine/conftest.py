"""Tiny random checkpoints, made once per run."""

import pytest
import torch

from tests.engine.checkpoints import Checkpoints, make_checkpoints


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return make_checkpoints(tmp_path_factory.mktemp("checkpoints"))
