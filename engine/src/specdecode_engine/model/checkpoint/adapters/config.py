"""Reads adapter_config.json: rank and scale of each adapted map, and what is refused by its key.

Which maps are adapted is read from the tensors alone: keys such as `target_modules` decide nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specdecode_engine.model.checkpoint.adapters.pattern import Pattern
from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile

CONFIG = "adapter_config.json"

READ = (
    *("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora"),
    *("init_lora_weights", "base_model_name_or_path", "peft_version"),
)
DECIDED_BY_TENSORS = (
    *("target_modules", "exclude_modules", "target_parameters", "layers_to_transform"),
    *("layers_pattern", "modules_to_save", "bias", "ensure_weight_tying"),
)
WITHOUT_EFFECT = (
    *("auto_mapping", "task_type", "inference_mode", "revision", "fan_in_fan_out", "lora_dropout"),
    *("megatron_config", "megatron_core", "qalora_group_size"),
    # How factors began: `init_lora_weights` decides whether that matters.
    *("corda_config", "eva_config", "lora_ga_config"),
)
PLAIN_BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` with which the base stays as it is."""

_MERGE = "merge the adapter into its base model and serve the result"
REFUSED: Mapping[str, str] = {
    "use_dora": f"DoRA is not supported; {_MERGE}",
    "lora_bias": f"biases of adapters are not supported; {_MERGE}",
    "alora_invocation_tokens": "activated LoRA (aLoRA) is not supported; train a plain LoRA",
    "layer_replication": f"repeated layers are not supported; {_MERGE}",
    "arrow_config": "routing among adapters is not supported; serve each as an adapter",
    "kasa_config": f"KaSA, which changes the base, is not supported; {_MERGE}",
    "use_bdlora": "block-diagonal LoRA is not supported; train a plain LoRA",
    "use_qalora": f"QA-LoRA is not supported; {_MERGE}",
    "velora_config": "VeLoRA is not supported; train a plain LoRA",
    "monteclora_config": "MonteCLoRA is not supported; train a plain LoRA",
    "trainable_token_indices": f"trained tokens are not supported; {_MERGE}",
}
"""Remedies, by the key: refused with any value but false, null and empty ones."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What adapter_config.json declares of a LoRA adapter."""

    file: ConfigFile
    rank: int
    alpha: float
    is_rank_stabilized: bool  # scale alpha / sqrt(rank) in place of alpha / rank
    ranks: Pattern
    alphas: Pattern
    base_name: str | None  # of the machine that trained it; shown only

    @classmethod
    def load(cls, folder: Path) -> "AdapterConfig":
        """Read the file in a folder.

        Raises:
            CheckpointError: the file is missing or damaged, or declares what is not supported.
        """
        path = folder / CONFIG
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file; {_other_folder(folder)}")
        file = ConfigFile.open(path)
        _refuse_others(file)
        base = file.get("base_model_name_or_path")
        return cls(
            file,
            file.integer("r"),
            file.real("lora_alpha"),
            file.switch("use_rslora", False),
            Pattern.read(file, "rank_pattern", are_integers=True),
            Pattern.read(file, "alpha_pattern"),
            base if isinstance(base, str) and base else None,
        )

    def rank_of(self, path: str) -> int:
        """Return the rank of the module at a path of the base."""
        found = self.ranks.of(path)
        return int(found[0]) if found else self.rank

    def scale_of(self, path: str, rank: int) -> float:
        """Return the factor of what the module's adapter of a rank adds.

        Raises:
            ConfigError: keys of `alpha_pattern` with unequal values match the path. peft sorts them
                when it saves, so the first of them may be another than in training.
        """
        found = self.alphas.of(path)
        if len(set(found)) > 1:
            remedy = f"several keys match {path}; write one key for each module"
            raise self.file.error("alpha_pattern", remedy)
        alpha = found[0] if found else self.alpha
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)


def _refuse_others(file: ConfigFile) -> None:
    if file.get("peft_type") != "LORA":
        raise file.error("peft_type", "only adapters that peft saves with LORA are supported")
    for key, remedy in REFUSED.items():
        if not _is_unset(file.get(key)):
            raise file.error(key, remedy)
    if file.get("init_lora_weights") not in PLAIN_BEGINNINGS:
        remedy = (
            "the adapter belongs to a changed base; convert it: in peft, save it with "
            "path_initial_model_for_weight_conversion"
        )
        raise file.error("init_lora_weights", remedy)
    known = {*READ, *DECIDED_BY_TENSORS, *WITHOUT_EFFECT, *REFUSED}
    for key, value in file.keys.items():
        if key not in known and not _is_unset(value):
            raise file.error(key, "the key is unknown, and may change what the adapter computes")


def _is_unset(value: object) -> bool:
    return value is None or value is False or value in ("", [], {})


def _other_folder(folder: Path) -> str:
    """Return the remedy: peft saves named adapters in folders inside of the one that is given."""
    inner = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}"))
    if inner:
        return f"the adapter is in a folder inside: give {folder / inner[0]}"
    return "give a folder that peft has saved a LoRA adapter to"
