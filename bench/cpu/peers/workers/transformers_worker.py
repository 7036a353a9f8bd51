"""transformers: generate, assisted generation, a padded batch, and continuous batching."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from bench.cpu.peers.answering import Ask, Setup, Told, Way, answer_questions

_GREEDY: Any = GenerationConfig
_CACHE_PAGES = 512  # of 16 tokens each
_PAGE_TOKENS = 16


def load(setup: Setup) -> tuple[Mapping[str, Way], dict[str, str]]:
    """Read both models."""
    torch.set_num_threads(1)
    models = Models(_read(setup.target, setup.dtype), _read(setup.draft, setup.dtype))
    ways: dict[str, Way] = {
        "plain": models.plain,
        "batch": models.plain,
        "speculative": models.assisted,
        "mixed": models.mixed,
    }
    return ways, {name: version(name) for name in ("transformers", "torch")}


def _read(folder: str, dtype: str) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = None  # an answer is as long as it was asked for
    model.generation_config.pad_token_id = 0
    return model.eval()


class Models:
    """Target and draft."""

    def __init__(self, target: Any, draft: Any) -> None:
        self._target = target
        self._draft = draft

    def plain(self, ask: Ask) -> Told:
        """Prompts and answers of one length, together."""
        return self._generate(ask, {})

    def assisted(self, ask: Ask) -> Told:
        """One prompt, with the draft and a depth that stays."""
        settings = self._draft.generation_config
        settings.num_assistant_tokens = ask.depth
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = 0.0
        return self._generate(ask, {"assistant_model": self._draft})

    def _generate(self, ask: Ask, options: dict[str, Any]) -> Told:
        ids = torch.tensor(ask.prompts)
        with ask.timed():
            out = self._target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=ask.tokens[0],
                do_sample=False,
                **options,
            )
        return Told(out[:, ids.shape[1] :].tolist())

    def mixed(self, ask: Ask) -> Told:
        """What `generate_batch` does, with a length of its own for each answer, and warm."""
        before = self._target.config._attn_implementation
        config = _GREEDY(do_sample=False, eos_token_id=-1, pad_token_id=0)
        config.max_new_tokens = max(ask.tokens)
        batching = ContinuousBatchingConfig(num_blocks=_CACHE_PAGES, page_size=_PAGE_TOKENS)
        try:
            with self._target.continuous_batching_context_manager(
                generation_config=config, continuous_batching_config=batching
            ) as manager:
                _serve(manager, [ask.prompts[0]], [2])  # its thread is up, its cache made
                with ask.timed():
                    return Told(_serve(manager, ask.prompts, ask.tokens))
        finally:
            self._target.set_attn_implementation(before)


def _serve(manager: Any, prompts: list[list[int]], tokens: list[int]) -> list[list[int]]:
    names = [
        manager.add_request(prompt, max_new_tokens=most)
        for prompt, most in zip(prompts, tokens, strict=True)
    ]
    done: dict[str, list[int]] = {}
    while len(done) < len(names):
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            done[result.request_id] = list(result.generated_tokens)
    return [done[name] for name in names]


if __name__ == "__main__":
    answer_questions(load)
