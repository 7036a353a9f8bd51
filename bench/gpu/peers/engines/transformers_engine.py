"""transformers: `generate` without a draft, all prompts of a batch together."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from bench.gpu.peers.cells import Mode
from bench.gpu.peers.jobs.job_process import Setup, run_job
from bench.gpu.peers.jobs.measuring import Prompts
from bench.gpu.peers.loads import ScheduledRequest


class TransformersEngine:
    """A model with a growing cache."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def use(self, mode: Mode) -> None:
        """Take the only mode.

        Raises:
            ValueError: it is not plain.
        """
        if mode is not Mode.PLAIN:
            raise ValueError(f"mode {mode}: transformers is measured plain alone")

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """Answer all at once."""
        ids = torch.tensor([list(one) for one in prompts], device=self._model.device)
        with torch.inference_mode():
            answered = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
            )
        found: list[list[int]] = answered[:, ids.shape[1] :].tolist()
        return found

    def serve(self, requests: Sequence[ScheduledRequest]) -> list[list[int]]:
        """Refuse requests that come and go.

        Raises:
            NotImplementedError: `generate` answers a whole batch.
        """
        raise NotImplementedError("transformers' generate answers a whole batch at once")

    def facts(self) -> dict[str, Any]:
        """Return nothing: every step emits one token."""
        return {}


def start(setup: Setup) -> tuple[TransformersEngine, dict[str, Any]]:
    """Load the target."""
    torch.set_num_threads(1)
    dtype = torch.bfloat16 if setup.is_gpu else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(setup.target, dtype=dtype)
    model.generation_config.eos_token_id = None  # an answer is as long as requested
    model.generation_config.pad_token_id = 0
    model = model.eval().to("cuda" if setup.is_gpu else "cpu")
    return TransformersEngine(model), {
        "version": transformers.__version__,
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    run_job(start)
