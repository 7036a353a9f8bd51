"""Tiny random checkpoints, made once per run."""

import pytest
import torch

from specdecode_engine.steps.in_flight import InFlightStep, StepResult
from tests.engine.checkpoints import Checkpoints, make_checkpoints


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return make_checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def verified_tokens(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The drafted tokens that each request of a step verified, step by step."""
    found, received = list[list[int]](), InFlightStep.collect

    def noted(step: InFlightStep) -> StepResult:
        result = received(step)
        if step.decision is not None:
            found.append([rows - 1 for rows in result.num_verify_rows])
        return result

    monkeypatch.setattr(InFlightStep, "collect", noted)
    return found
