"""The same kind of pair for transformers: random weights, a draft of the target's first layer."""

from dataclasses import dataclass
from typing import Any

import torch

from bench.gpu.random_weights import INTO_RESIDUAL, hf_keys
from bench.gpu.scale import ModelSize


@dataclass(frozen=True, slots=True)
class HfPair:
    """Target and draft that share embedding, first layer, norm and head."""

    target: Any
    draft: Any
    device: torch.device

    @classmethod
    def build(cls, size: ModelSize, epsilon: float, device: torch.device) -> "HfPair":
        """Make both on the device."""
        target = _model(size, size.layers, device)
        draft = _model(size, 1, device)
        draft.model.embed_tokens = target.model.embed_tokens
        draft.model.layers[0] = target.model.layers[0]
        draft.model.norm, draft.lm_head = target.model.norm, target.lm_head
        with torch.no_grad():
            for name, weight in target.named_parameters():
                if weight.dim() == 2:
                    is_later = not name.startswith("model.layers.0.")
                    scale = epsilon if is_later and name.endswith(INTO_RESIDUAL) else 1.0
                    is_table = "embed_tokens" in name
                    weight.normal_(std=1.0 if is_table else scale * weight.shape[1] ** -0.5)
        for model in (target, draft):
            model.generation_config.eos_token_id = None  # an answer is as long as it was asked for
        return cls(target, draft, device)

    def generate(self, prompt_tokens: int, tokens: int, cache: str | None, steps: int) -> None:
        """Answer one random prompt greedily; `steps` of the draft at a time, 0 without it."""
        vocab = self.target.config.vocab_size
        ids = torch.randint(3, vocab, (1, prompt_tokens), device=self.device)
        options: dict[str, object] = {} if cache is None else {"cache_implementation": cache}
        if steps:
            settings = self.draft.generation_config
            settings.num_assistant_tokens = steps
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0
            options["assistant_model"] = self.draft
        self.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            **options,
        )


def _model(size: ModelSize, layers: int, device: torch.device) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config: Any = LlamaConfig.from_dict(hf_keys(size, layers))
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, size.dtype))
    try:
        with torch.device(device):
            model: Any = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval()
