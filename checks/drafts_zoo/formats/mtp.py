"""MTP modules as their vendors publish them, next to a target or as an export of their own.

The reference is transformers' decoder layer of the module's architecture: a model of one layer maps
the projected embeddings and hidden states, and its final norm is the module's.

Sources: the checkpoints of MiMo-7B, GLM-4.5, DeepSeek-V3, Qwen3-Next and Qwen3.5; transformers,
`MtpLayer`.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, linear

from checks.drafts_zoo.files import read_tensors, tensor_file, write_checkpoint, write_tensors
from checks.drafts_zoo.fitting import fit
from checks.drafts_zoo.format import DraftFiles, DraftFormat
from checks.drafts_zoo.slow_layers import Tensors
from checks.drafts_zoo.targets import VOCAB, SlowTarget, write_target
from checks.zoo.models import randomise, read_models
from specdecode_api.speculation import Algorithm

HIDDEN = 64
LAYER = "layers.0."
EXPERTS = 6
QWEN3_5_MOE = "qwen3_5_moe_text"
SIZES: Mapping[str, object] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpNames:
    """Names of a module's tensors without `.weight`."""

    token_norm: str
    hidden_norm: str
    projection: str
    output_norm: str
    layer: str
    prefix: str


def deepseek_names(layer: int) -> MtpNames:
    """Return the names of a module at a layer's place."""
    prefix = f"model.layers.{layer}."
    names = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
    token_norm, hidden_norm, projection, output_norm = (prefix + name for name in names)
    return MtpNames(
        token_norm=token_norm,
        hidden_norm=hidden_norm,
        projection=projection,
        output_norm=output_norm,
        layer=prefix,
        prefix=prefix,
    )


MIMO_NAMES = MtpNames(
    token_norm="model.mtp_layers.0.token_layernorm",
    hidden_norm="model.mtp_layers.0.hidden_layernorm",
    projection="model.mtp_layers.0.input_proj",
    output_norm="model.mtp_layers.0.final_layernorm",
    layer="model.mtp_layers.0.",
    prefix="model.mtp_layers.",
)
SPECULATORS_NAMES = MtpNames(
    token_norm="mtp_layers.0.token_layernorm",
    hidden_norm="mtp_layers.0.hidden_layernorm",
    projection="mtp_layers.0.input_proj",
    output_norm="mtp_layers.0.final_layernorm",
    layer="mtp_layers.0.",
    prefix="mtp_layers.",
)
QWEN3_NEXT_NAMES = MtpNames(
    token_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    projection="mtp.fc",
    output_norm="mtp.norm",
    layer="mtp.layers.0.",
    prefix="mtp.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpForm:
    """One layout: where a module's tensors are, and what it computes."""

    target: str  # of tests/zoo/models.toml
    target_keys: Mapping[str, object] = field(default_factory=dict)  # over its config.json
    names: MtpNames
    layer_type: str  # of transformers: the model whose layer the module has
    layer_keys: Mapping[str, object] = field(default_factory=dict)
    export_keys: Mapping[str, object] | None = None  # of a config.json of the module's own
    copies: tuple[str, ...] = ()  # of the target's embedding and head, which nobody reads
    is_hidden_first: bool = False
    zeroes_first_row: bool = False
    is_fused: bool = False  # all experts in one tensor

    def make_layer(self) -> Any:
        """Return transformers' base model of one layer, in float64, with random weights."""
        import transformers

        keys = {**SIZES, **self.layer_keys, "num_hidden_layers": 1}
        config = transformers.AutoConfig.for_model(self.layer_type, **keys)
        auto: Any = transformers.AutoModel
        model = auto.from_config(
            config, attn_implementation="eager", experts_implementation="eager"
        )
        randomise(model, seed=3)
        return model.double().eval()

    def write(self, folder: Path, seed: int) -> DraftFiles:
        """Write the target and a module that is fitted to some of its texts."""
        target, draft = folder / "target", folder / "draft"
        write_target(target, self.target)
        config = target / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | dict(self.target_keys)))
        module = SlowModule(self, SlowTarget(target), self._draw(seed))
        texts = module.target.answered_prompts()
        tensors = self._stored(fit(module.tensors, lambda w: module.loss(w, texts)))
        if self.export_keys is not None:
            write_checkpoint(draft, {**SIZES, **self.export_keys}, tensors)
            return DraftFiles(target, draft)
        write_tensors(tensor_file(target), read_tensors(target) | tensors)
        return DraftFiles(target)

    def _draw(self, seed: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        layer = {
            name: t for name, t in self.make_layer().state_dict().items() if "embed" not in name
        }
        fused = torch.randn(HIDDEN, 2 * HIDDEN, generator=generator) * (2 * HIDDEN) ** -0.5
        norm = layer["norm.weight"]
        return {
            "token_norm": norm + 0.1 * torch.randn(HIDDEN, generator=generator),
            "hidden_norm": norm + 0.1 * torch.randn(HIDDEN, generator=generator),
            "projection": fused.double(),
            **layer,
        }

    def _stored(self, tensors: Tensors) -> Tensors:
        """Give tensors of the reference the names and shapes of the checkpoint."""
        names, stored = self.names, dict[str, Tensor]()
        for name, tensor in tensors.items():
            if name in ("token_norm", "hidden_norm", "projection"):
                stored[f"{getattr(names, name)}.weight"] = tensor
            elif name == "norm.weight":
                stored[f"{names.output_norm}.weight"] = tensor
            else:
                own = names.layer + name.removeprefix(LAYER)
                stored |= {own: tensor} if self.is_fused else _separate(own, tensor)
        stored |= {names.prefix + name: torch.zeros(VOCAB, HIDDEN) for name in self.copies}
        return {name: tensor.float() for name, tensor in stored.items()}

    def read(self, files: DraftFiles) -> "SlowModule":
        """Open the reference of what `write` wrote."""
        stored = read_tensors(files.draft or files.target)
        names, layer = self.names, self.make_layer().state_dict()
        tensors = {
            part: stored[f"{getattr(names, part)}.weight"]
            for part in ("token_norm", "hidden_norm", "projection")
        }
        tensors["norm.weight"] = stored[f"{names.output_norm}.weight"]
        for name, tensor in layer.items():
            if name.startswith(LAYER):
                tensors[name] = _joined(names.layer + name.removeprefix(LAYER), stored, len(tensor))
        return SlowModule(self, SlowTarget(files.target), tensors)


def _separate(name: str, tensor: Tensor) -> Tensors:
    """Name every expert's projections, which transformers keeps in one tensor."""
    if name.endswith("experts.gate_up_proj"):
        prefix = name.removesuffix("gate_up_proj")
        parts = [expert.chunk(2) for expert in tensor]
        return {
            f"{prefix}{number}.{part}_proj.weight": half
            for number, halves in enumerate(parts)
            for part, half in zip(("gate", "up"), halves, strict=True)
        }
    if name.endswith("experts.down_proj"):
        prefix = name.removesuffix("down_proj")
        return {f"{prefix}{number}.down_proj.weight": one for number, one in enumerate(tensor)}
    return {name: tensor}


def _joined(name: str, stored: Tensors, experts: int) -> Tensor:
    """Undo `_separate`; `experts` is the first size of a joined tensor."""
    if name in stored:
        return stored[name]
    if name.endswith("experts.gate_up_proj"):
        prefix = name.removesuffix("gate_up_proj")
        parts = (
            torch.cat([stored[f"{prefix}{number}.{part}_proj.weight"] for part in ("gate", "up")])
            for number in range(experts)
        )
        return torch.stack([*parts])
    if name.endswith("experts.down_proj"):
        prefix = name.removesuffix("down_proj")
        return torch.stack([stored[f"{prefix}{n}.down_proj.weight"] for n in range(experts)])
    return stored[name]


class SlowModule:
    """Row i pairs the target's final hidden state at i with token i + 1; nothing is cached."""

    def __init__(self, form: MtpForm, target: SlowTarget, tensors: Tensors) -> None:
        self.target = target
        self.tensors = {name: tensor.double() for name, tensor in tensors.items()}
        self._form = form
        self._layer: nn.Module = form.make_layer()
        norm: Any = self._layer.norm
        self._norm: nn.Module = copy.deepcopy(norm)
        self._embedding = target.model.get_input_embeddings().weight.detach()
        self._scores = target.model.get_output_embeddings().weight.detach()

    def next_logits(self, committed: Sequence[int], drafted: Sequence[int]) -> Tensor:
        hidden = self.target.states(tuple(committed[:-1])).final
        ids = torch.tensor([*committed, *drafted])
        with torch.no_grad():
            for end in range(len(committed), len(ids) + 1):
                output = self._rows(self.tensors, ids[1:end], hidden)
                hidden = torch.cat((hidden, output[-1:]))
        scores: Tensor = output[-1] @ self._scores.T
        return scores

    def _rows(self, w: Tensors, ids: Tensor, hidden: Tensor) -> Tensor:
        token = self._embedding[ids]
        if self._form.zeroes_first_row:
            token = torch.cat((torch.zeros_like(token[:1]), token[1:]))
        parts = [
            functional_call(self._norm, {"weight": w[f"{name}_norm"]}, rows)
            for name, rows in (("token", token), ("hidden", hidden))
        ]
        if self._form.is_hidden_first:
            parts.reverse()
        x = linear(torch.cat(parts, dim=-1), w["projection"])
        layer = {name: one for name, one in w.items() if name.startswith((LAYER, "norm."))}
        options = {"inputs_embeds": x[None], "use_cache": False}
        rows: Tensor = functional_call(self._layer, layer, kwargs=options).last_hidden_state[0]
        return rows

    def loss(self, w: Tensors, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """Cross entropy of token i + 2 after row i."""
        total = torch.zeros((), dtype=torch.float64)
        for text in texts:
            ids = torch.tensor(text)
            hidden = self.target.states(text).final[: len(text) - 2]
            logits = self._rows(w, ids[1:-1], hidden) @ self._scores.T
            total = total + cross_entropy(logits, ids[2:])
        return total


DEEPSEEK_EXPERTS: Mapping[str, object] = {
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "n_group": 3,
    "topk_group": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 0,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
LATENTS: Mapping[str, object] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
}
YARN: Mapping[str, object] = {
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.9,
}
QWEN_EXPERTS: Mapping[str, object] = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
    "norm_topk_prob": True,
}
COPIES = ("embed_tokens.weight", "shared_head.head.weight")


def _sizes_of(target: str, **changes: object) -> Mapping[str, object]:
    """Return the keys of a target whose layers a module next to it has."""
    return {**read_models()[target].keys, **changes}


FORMS: Mapping[str, MtpForm] = {
    "mtp-mimo": MtpForm(
        target="qwen2",
        target_keys={
            "architectures": ["MiMoForCausalLM"],
            "use_sliding_window": False,
            "layer_types": None,
            "num_nextn_predict_layers": 1,
        },
        names=MIMO_NAMES,
        layer_type="qwen2",
        layer_keys=_sizes_of("qwen2", use_sliding_window=False, rms_norm_eps=1e-6),
        is_hidden_first=True,
        zeroes_first_row=True,
    ),
    "mtp-glm4": MtpForm(
        target="glm4_moe",
        names=deepseek_names(3),
        layer_type="glm4_moe",
        layer_keys=_sizes_of("glm4_moe", first_k_dense_replace=0),
        copies=COPIES,
    ),
    "mtp-deepseek": MtpForm(
        target="youtu",
        names=deepseek_names(0),
        layer_type="deepseek_v3",
        layer_keys={
            **DEEPSEEK_EXPERTS,
            **LATENTS,
            "rope_parameters": {"rope_type": "yarn", **YARN},
        },
        export_keys={
            **DEEPSEEK_EXPERTS,
            **LATENTS,
            "rope_scaling": {"type": "yarn", **YARN},
            "architectures": ["DeepseekV3ForCausalLMNextN"],
            "model_type": "deepseek_v3",
            "num_hidden_layers": 1,
            "num_nextn_predict_layers": 1,
            "hidden_act": "silu",
        },
        copies=COPIES,
    ),
    "mtp-speculators": MtpForm(
        target="llama",
        names=SPECULATORS_NAMES,
        layer_type="qwen3",
        export_keys={
            "architectures": ["MTPDraftModel"],
            "speculators_model_type": "mtp",
            "transformer_layer_config": {"model_type": "qwen3", "num_hidden_layers": 3},
        },
    ),
    "mtp-qwen3next": MtpForm(
        target="qwen3",
        names=QWEN3_NEXT_NAMES,
        layer_type="qwen3_next",
        layer_keys={**QWEN_EXPERTS, "layer_types": ["full_attention"]},
        export_keys={
            **QWEN_EXPERTS,
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "num_hidden_layers": 1,
            "hidden_act": "silu",
        },
    ),
    "mtp-qwen3.5-moe": MtpForm(
        target=QWEN3_5_MOE,
        target_keys={"mtp_num_hidden_layers": 1},
        names=QWEN3_NEXT_NAMES,
        layer_type=QWEN3_5_MOE,
        layer_keys={
            **read_models()[QWEN3_5_MOE].keys,
            "layer_types": ["full_attention"],
            "rms_norm_eps": 1e-6,
        },
        is_fused=True,
    ),
}


def _format(name: str, form: MtpForm) -> DraftFormat:
    return DraftFormat(
        name=name,
        algorithm=Algorithm.MTP,
        write=form.write,
        reference=form.read,
        is_of_draft=lambda tensor: tensor.startswith(form.names.prefix),
        optional=frozenset(form.names.prefix + one for one in form.copies),
    )


FORMATS = tuple(_format(name, form) for name, form in FORMS.items())
