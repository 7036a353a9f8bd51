"""The config.json of a checkpoint with multi-token prediction (MTP) modules, checked against a
target.

A module has one decoder layer of the model that it was trained with. Its config.json is that of
the target's own checkpoint, or of an export that contains the module alone ("NextN" repositories).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from specdecode_api.speculation import MAX_STEPS
from specdecode_engine.model.checkpoint.checkpoint import has_tensors
from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.checkpoint.mtp_layout import (
    DEEPSEEK,
    INKLING,
    MIMO,
    MIMO_V2,
    QWEN3_NEXT,
    SPECULATORS,
    STEP,
    MtpLayout,
    MtpModules,
)
from specdecode_engine.model.checkpoint.pickle_store import has_pickles
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.model.drafts.draft_config import HeadConfig
from specdecode_engine.model.drafts.mtp_families import (
    MODULE_FAMILIES,
    QWEN3_5,
    QWEN3_5_WRAPPED,
    ModuleInputs,
)
from specdecode_engine.model.drafts.speculators import (
    KIND,
    Verifier,
    flatten_speculators,
    open_draft,
    proposed_draft_steps,
)
from specdecode_engine.model.layers.sparse_mlp import SparseMlpConfig
from specdecode_engine.model.target.config import AuxHiddenStates
from specdecode_engine.model.target.language_model import LanguageModelConfig

COUNT_KEYS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
EXPORT_SUFFIXES = ("NextN", "MTP")
"""What exports of the module alone add to the name of the architecture."""

_LAYOUTS = {
    "MiMoForCausalLM": MIMO,
    **dict.fromkeys(("Qwen3NextForCausalLM", *QWEN3_5, *QWEN3_5_WRAPPED), QWEN3_NEXT),
    "Step3p5ForCausalLM": STEP,
    "Step3p7ForConditionalGeneration": STEP,
    "MiMoV2FlashForCausalLM": MIMO_V2,
    "MiMoV2ForCausalLM": MIMO_V2,
}
"""Layouts by architecture, where there are no tensors; DeepSeek's for others."""

_OF_SPECULATORS = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
}
"""Architectures by the model type of the layer that speculators trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpConfig(HeadConfig):
    """Modules of one decoder layer each, of which the first `num_hidden_layers` draft."""

    layout: MtpLayout
    numbers: tuple[int, ...]  # of all modules of the checkpoint, in the names of their tensors
    inputs: ModuleInputs

    @property
    def facts(self) -> dict[str, object]:
        return {"mtp_layout": self.layout.name, "mtp_modules": len(self.numbers)}

    @property
    def window(self) -> int | None:
        """Positions that a row of a module sees, its own included; None: all."""
        return self.sliding_windows[0]

    @property
    def used_numbers(self) -> tuple[int, ...]:
        """Numbers of the modules that draft."""
        return self.numbers[: self.num_hidden_layers]

    def with_modules(self, count: int) -> Self:
        """Return the config of the first modules."""
        windows = self.sliding_windows[:1] * count
        return replace(self, num_hidden_layers=count, sliding_windows=windows)

    @classmethod
    def load(cls, folder: Path, target: LanguageModelConfig) -> Self:
        """Read `folder`/config.json and the names of the tensors there; the first module drafts."""
        file = _open(folder)
        name = architecture_of(file)
        if name not in MODULE_FAMILIES:
            known = ", ".join(MODULE_FAMILIES)
            raise file.error("architectures", f"MTP modules are supported of {known}")
        family = MODULE_FAMILIES[name]
        config = family.layer.keys_of(file)
        for key, wanted in (
            ("hidden_size", target.decoder.hidden_size),
            ("vocab_size", target.vocab_size),
        ):
            if config.integer(key) != wanted:
                remedy = f"the target's is {wanted}; use modules of this target"
                raise config.mismatch(key, remedy)
        stored = _stored_names(folder)
        default = _LAYOUTS.get(name, DEEPSEEK) if file.get(KIND) is None else SPECULATORS
        modules = _find_modules(folder, stored, config, default)
        layer = family.read(config, family.layer, len(modules.numbers))
        last = target.num_hidden_layers - 1
        return cls(
            decoder=layer.decoder,
            rope=layer.rope,
            num_hidden_layers=1,
            sliding_windows=(layer.window,),
            vocab_size=target.vocab_size,
            draft_vocab_size=target.vocab_size,
            aux_spec=AuxHiddenStates(final=True)
            if family.inputs.is_target_normed
            else AuxHiddenStates(layers=(last,)),
            verifier=Verifier.read(file),
            proposed_draft_steps=proposed_draft_steps(file),
            layout=_with_chain_norm(file, modules.layout),
            numbers=modules.numbers,
            inputs=family.inputs,
            sparse_mlp=_as_stored(layer.sparse_mlp, modules, stored),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpChainConfig(MtpConfig):
    """All modules, each for one draft step."""

    @classmethod
    def load(cls, folder: Path, target: LanguageModelConfig) -> Self:
        """Read the config of all modules, of which none may be missing."""
        config = super(MtpChainConfig, cls).load(folder, target)
        _refuse_gaps(folder, config.numbers)
        count = min(len(config.numbers), MAX_STEPS)
        return replace(config.with_modules(count), proposed_draft_steps=count)

    @property
    def recurrent_width(self) -> int:
        return self.decoder.hidden_size if self.inputs.is_chained else 0

    @property
    def max_steps(self) -> int:
        return len(self.numbers)

    @property
    def facts(self) -> dict[str, object]:
        source = "the module before" if self.inputs.is_chained else "the target"
        used = {"mtp_modules_used": self.num_hidden_layers, "mtp_hidden_states": source}
        return {**super(MtpChainConfig, self).facts, **used}


def _open(folder: Path) -> ConfigFile:
    """Read `folder`/config.json; of speculators' the architecture becomes that of its layer."""
    file = open_draft(folder)
    if file.get(KIND) is None:
        return file
    flat = flatten_speculators(file, "mtp", tuple(_OF_SPECULATORS))
    name = _OF_SPECULATORS[str(flat.get("model_type") or "qwen3")]
    return ConfigFile(file.file, {**flat.keys, "architectures": [name]})


def architecture_of(file: ConfigFile) -> str:
    """Return the architecture of a config.json, without what exports of a module add to it."""
    name = file.architecture
    for suffix in EXPORT_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def is_export(file: ConfigFile) -> bool:
    """Whether a config.json is of modules alone, as its architecture declares."""
    return file.architecture.endswith(EXPORT_SUFFIXES)


def count_modules(folder: Path) -> int:
    """Return how many MTP modules a checkpoint has; without tensors, config.json decides."""
    stored = _stored_names(folder)
    if stored is not None:
        modules = MtpModules.find(stored)
        return 0 if modules is None else len(modules.numbers)
    config = ConfigFile.open(folder / "config.json")
    return _count(config.section("text_config") or config)


def _stored_names(folder: Path) -> Collection[str] | None:
    """Return the names of a checkpoint's tensors; None where config.json is alone."""
    if not has_tensors(folder) and not has_pickles(folder):
        return None
    return open_checkpoint(folder).tensors.keys()


def _as_stored(
    experts: SparseMlpConfig | None, modules: MtpModules, stored: Collection[str] | None
) -> SparseMlpConfig | None:
    """Return the experts of a module as its tensors have them: in one, or in one for each."""
    if experts is None or stored is None:
        return experts
    prefix = modules.layout.at(modules.numbers[0]).layer
    fused = (f"{prefix}.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj"))
    return replace(experts, is_fused=any(name in stored for name in fused))


def _with_chain_norm(file: ConfigFile, layout: MtpLayout) -> MtpLayout:
    """Leave out the norm that all modules share unless config.json has it."""
    section = file.section("mtp_config") or file
    has_norm = layout is not INKLING or section.switch("chain_hidden_post_norm", False)
    return layout if has_norm else replace(layout, output_norm=None)


def _count(config: ConfigFile) -> int:
    """Return how many modules config.json names; 0 also where it names none."""
    stated = [config.integer(key, least=0) for key in COUNT_KEYS if config.get(key) is not None]
    return stated[0] if stated else 0


def _refuse_gaps(folder: Path, numbers: tuple[int, ...]) -> None:
    """Raise unless all modules have tensors; each reads what the others left."""
    file = ConfigFile.open(folder / "config.json")
    section = file.section("text_config") or file.section("mtp_config") or file
    missing = sorted(set(range(numbers[0], numbers[-1])) - set(numbers))
    missing += range(numbers[-1] + 1, numbers[0] + _count(section))
    if missing:
        shown = ", ".join(map(str, missing))
        raise CheckpointError(
            f"{folder}: there are tensors of the MTP modules {', '.join(map(str, numbers))}, and "
            f"none of {shown}; download the checkpoint again, or correct the number of modules in "
            "config.json"
        )


def _find_modules(
    folder: Path, stored: Collection[str] | None, config: ConfigFile, layout: MtpLayout
) -> MtpModules:
    if stored is None:
        first = config.integer("num_hidden_layers") if layout in (DEEPSEEK, STEP) else 0
        return MtpModules(layout, tuple(range(first, first + max(1, _count(config)))))
    found = MtpModules.find(stored)
    if found is None:
        raise CheckpointError(
            f"{folder}: there are no tensors of an MTP module (model.layers.N.eh_proj, "
            "model.mtp_layers.0, mtp_layers.0, model.mtp.layers.0 or mtp.fc); use a checkpoint "
            "that contains one, or another algorithm"
        )
    if 0 < _count(config) < len(found.numbers):
        key = next(key for key in COUNT_KEYS if config.get(key) is not None)
        raise config.error(key, f"the checkpoint has {len(found.numbers)} modules; correct it")
    return found
