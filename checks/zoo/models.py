"""Model types and their configurations, and tiny random checkpoints of them."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdecode_engine.model.kv.layer_map import RECURRENT

MODELS = Path(__file__).parents[2] / "tests" / "zoo" / "models.toml"
REQUIRED, OTHERS, REFUSED = "required", "others", "refused"


@dataclass(frozen=True, slots=True)
class ZooModel:
    """One configuration; `group` is its part of models.toml. A type may have several names."""

    name: str
    model_type: str
    group: str
    keys: Mapping[str, Any]

    @property
    def has_states(self) -> bool:
        """Whether some layers are recurrent."""
        types = self.keys.get("layer_types") or ()
        return not RECURRENT.isdisjoint(types)

    @property
    def vocab(self) -> int:
        return int(self.keys["vocab_size"])

    def make(self, folder: Path, *, change: float = 0.0, dtype: torch.dtype = torch.float32) -> Any:
        """Write a checkpoint with random weights, and return transformers' model of it.

        Args:
            change: standard deviation of what is added to every weight: for a draft close to the
                target.
        """
        import transformers

        auto: Any = transformers.AutoModelForCausalLM
        config = transformers.AutoConfig.for_model(self.model_type, **self.keys)
        model = auto.from_config(
            config, attn_implementation="eager", experts_implementation="eager"
        )
        randomise(model, seed=1)
        if change:
            add_noise(model, change, seed=2)
        model.to(dtype).eval().save_pretrained(folder)
        return model


def read_models(file: Path = MODELS) -> dict[str, ZooModel]:
    """Read the model types, by name; the text "null" is None, which TOML has no word for."""
    groups = tomllib.loads(file.read_text(encoding="utf-8"))
    common = groups.pop("common")
    return {
        name: ZooModel(name, keys.pop("model_type", name), group, _with_none({**common, **keys}))
        for group, models in groups.items()
        for name, keys in models.items()
    }


def _with_none(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value == "null" else value for name, value in keys.items()}


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Draw matrices wide enough that wrong arithmetic shows; change vectors around their value."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.copy_(drawn * parameter.shape[-1] ** -0.5 * 1.3)
        else:
            parameter.add_(drawn * 0.2)
    stored = model.state_dict()
    for name, buffer in model.named_buffers():
        if name in stored and buffer.is_floating_point():  # corrections of routers, layer scalars
            buffer.add_(torch.randn(buffer.shape, generator=generator) * 0.2)


@torch.no_grad()
def add_noise(model: torch.nn.Module, width: float, seed: int) -> None:
    """Add normal noise to every parameter."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * width)
