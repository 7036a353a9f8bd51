"""Chains of MTP modules: those of Step-3.5, which read one another's outputs, and of MiMo-V2.

The reference is transformers' decoder layer of the architecture, as in `mtp`: a model of one layer
for each module. Step's modules read and pass on hidden states before their norms, as in SGLang and
vLLM; transformers' `MtpModel` norms them.

Sources: the checkpoints' names in SGLang and vLLM; transformers, `Step3p7TextModel` and
`MiMoV2FlashModel`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, linear

from checks.drafts_zoo.files import read_tensors, write_checkpoint
from checks.drafts_zoo.fitting import fit
from checks.drafts_zoo.format import DraftFiles, DraftFormat, chain_drafter_state
from checks.drafts_zoo.slow_layers import Tensors
from checks.drafts_zoo.targets import VOCAB, SlowTarget, write_target
from checks.zoo.models import randomise
from specdecode_api.speculation import Algorithm

HIDDEN, MODULES = 64, 3
LAYER = "layers.0."
EXTRA = ("token_norm", "hidden_norm", "projection")
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainForm:
    """One layout: names of a module's tensors, with its number for `{}`, and what it computes."""

    keys: Mapping[str, object]  # of config.json
    make_layer: Callable[[], Any]  # transformers' base model of one layer
    prefix: str
    extra: Mapping[str, str]  # names of the norms, the map and the norm of outputs, with `.weight`
    first_number: int = 0
    renamed: Mapping[str, str] = field(default_factory=dict)  # parts of the layer's names
    copies: tuple[str, ...] = ()  # of the target's embedding and head, which nobody reads
    is_chained: bool = True
    is_normed: bool = True  # what modules read

    def write(self, folder: Path, seed: int, *, fit_steps: int = 60) -> DraftFiles:
        """Write the target and modules that are fitted to some of its texts."""
        files = DraftFiles(folder / "target", folder / "draft")
        write_target(files.target)
        drawn = self._draw(seed)
        chain = SlowChain(self, SlowTarget(files.target), drawn)
        texts = chain.target.answered_prompts()
        fitted = fit(drawn, lambda w: chain.loss(w, texts), steps=fit_steps)
        tensors = self._stored(fitted)
        write_checkpoint(folder / "draft", {**SIZES, **self.keys}, tensors)
        return files

    def _draw(self, seed: int) -> Tensors:
        drawn: Tensors = {}
        for module in range(MODULES):
            generator = torch.Generator().manual_seed(seed + module)
            layer = self.make_layer()
            randomise(layer, seed + module)
            own = {
                name: t for name, t in layer.double().state_dict().items() if "embed" not in name
            }
            for name in ("token_norm", "hidden_norm"):
                own[name] = own["norm.weight"] + 0.1 * torch.randn(HIDDEN, generator=generator)
            fused = torch.randn(HIDDEN, 2 * HIDDEN, generator=generator) * (2 * HIDDEN) ** -0.5
            own["projection"] = fused.double()
            drawn |= {f"{module}/{name}": tensor for name, tensor in own.items()}
        return drawn

    def name(self, module: int, part: str) -> str:
        """Return what a tensor of the reference is called in the checkpoint."""
        number = module + self.first_number
        if part in self.extra:
            return self.extra[part].format(number)
        rest = part.removeprefix(LAYER)
        for ours, theirs in self.renamed.items():
            rest = rest.replace(ours, theirs)
        return self.prefix.format(number) + rest

    def _stored(self, tensors: Tensors) -> Tensors:
        stored = {}
        for name, tensor in tensors.items():
            module, _, part = name.partition("/")
            stored[self.name(int(module), part)] = tensor.float()
        numbers = range(self.first_number, self.first_number + MODULES)
        copies = [copy.format(number) for number in numbers for copy in self.copies]
        return stored | {copy: torch.zeros(VOCAB, HIDDEN) for copy in copies}

    def read(self, files: DraftFiles) -> "SlowChain":
        """Open the reference of what `write` wrote."""
        assert files.draft is not None
        stored = read_tensors(files.draft)
        parts = [name for name in self.make_layer().state_dict() if "embed" not in name]
        tensors = {
            f"{module}/{part}": stored[self.name(module, part)]
            for module in range(MODULES)
            for part in (*parts, *EXTRA)
        }
        return SlowChain(self, SlowTarget(files.target), tensors)


class SlowChain:
    """Row i of module m reads token i + 1 + m; nothing is cached."""

    def __init__(self, form: ChainForm, target: SlowTarget, tensors: Tensors) -> None:
        self.target = target
        self.tensors = {name: tensor.double() for name, tensor in tensors.items()}
        self._form = form
        self._layer: Any = form.make_layer().double().eval()
        self._unnormed: list[Tensor] = []
        self._layer.norm.register_forward_pre_hook(lambda _, read: self._unnormed.append(read[0]))
        self._embedding = target.model.get_input_embeddings().weight.detach()
        self._scores = target.model.get_output_embeddings().weight.detach()

    def next_logits(self, committed: Sequence[int], drafted: Sequence[int]) -> Tensor | None:
        if len(drafted) >= MODULES:
            return None
        ids = torch.tensor([*committed, *drafted])
        read = self._read(tuple(committed[:-1]))
        with torch.no_grad():
            *_, scores = self._scored(self.tensors, ids, read, 1 + len(drafted))
        last: Tensor = scores[-1]
        return last

    def loss(self, w: Tensors, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """Cross entropy of token i + 2 + m after row i of module m."""
        total = torch.zeros((), dtype=torch.float64)
        for text in texts:
            ids, rows = torch.tensor(text), len(text) - 1 - MODULES
            scores = self._scored(w, ids, self._read(text)[:rows], MODULES)
            for module, logits in enumerate(scores):
                total = total + cross_entropy(logits, ids[2 + module :][:rows])
        return total

    def _read(self, text: tuple[int, ...]) -> Tensor:
        states = self.target.states(text)
        return states.final if self._form.is_normed else states.layers[-1]

    def _scored(self, w: Tensors, ids: Tensor, read: Tensor, modules: int) -> list[Tensor]:
        """Return the logits of every row of the first modules."""
        scores, hidden = [], read
        for module in range(modules):
            own = {
                name.partition("/")[2]: tensor
                for name, tensor in w.items()
                if name.startswith(f"{module}/")
            }
            normed, unnormed = self._rows(own, ids[1 + module :][: len(read)], hidden)
            scores.append(normed @ self._scores.T)
            if self._form.is_chained:
                hidden = normed if self._form.is_normed else unnormed
        return scores

    def _rows(self, w: Tensors, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        norm: nn.Module = self._layer.norm
        parts = [
            functional_call(norm, {"weight": w[f"{name}_norm"]}, rows)
            for name, rows in (("token", self._embedding[ids]), ("hidden", hidden))
        ]
        x = linear(torch.cat(parts, dim=-1), w["projection"])
        layer = {name: one for name, one in w.items() if name not in EXTRA}
        options = {"inputs_embeds": x[None], "use_cache": False}
        normed = functional_call(self._layer, layer, kwargs=options).last_hidden_state[0]
        unnormed = self._unnormed[-1][0]
        self._unnormed.clear()
        return normed, unnormed


def _make_step() -> Any:
    from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
    from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel

    config = Step3p7TextConfig(
        **SIZES,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_sliding_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        layer_types=["sliding_attention"],
        mlp_layer_types=["dense"],
        sliding_window=12,
        rope_parameters={
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.5,
            }
        },
    )
    config._attn_implementation = "eager"
    return Step3p7TextModel(config)


def _make_mimo() -> Any:
    from transformers.models.mimo_v2_flash.configuration_mimo_v2_flash import MiMoV2FlashConfig
    from transformers.models.mimo_v2_flash.modeling_mimo_v2_flash import MiMoV2FlashModel

    rope = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.334}
    config = MiMoV2FlashConfig(
        **SIZES,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,  # twice as many in layers with a window
        head_dim=24,
        v_head_dim=16,
        rms_norm_eps=1e-5,
        layer_types=["sliding_attention"],
        mlp_layer_types=["dense"],
        sliding_window=12,  # with the token itself
        attention_value_scale=0.707,
        rope_parameters={"sliding_attention": rope, "full_attention": rope},
    )
    config._attn_implementation = "eager"
    return MiMoV2FlashModel(config)


STEP_KEYS: Mapping[str, object] = {
    "architectures": ["Step3p5ForCausalLM"],
    "model_type": "step3p5",
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": MODULES,
    "num_attention_heads": 4,
    "num_attention_groups": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2},
    "layer_types": ["full_attention", *["sliding_attention"] * (1 + MODULES)],
    "sliding_window": 12,
    "rope_theta": [5000.0, *[100.0] * (1 + MODULES)],
    "partial_rotary_factors": [1.0, *[0.5] * (1 + MODULES)],
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "yarn_only_types": ["full_attention"],
    "use_head_wise_attn_gate": True,
    "swiglu_limits_shared": [0.0] * (2 + MODULES),
    "moe_layers_enum": "1",
    "hidden_act": "silu",
}
MIMO_KEYS: Mapping[str, object] = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 24,
    "swa_v_head_dim": 16,
    "sliding_window_size": 11,
    "rope_theta": 5000.0,
    "swa_rope_theta": 300.0,
    "partial_rotary_factor": 0.334,
    "attention_value_scale": 0.707,
    "add_swa_attention_sink_bias": True,
    "attention_bias": False,
    "layernorm_epsilon": 1e-5,
    "hidden_act": "silu",
}

FORMS: Mapping[str, ChainForm] = {
    "mtp-chain-chained": ChainForm(
        keys=STEP_KEYS,
        make_layer=_make_step,
        prefix="model.layers.{}.",
        extra={
            "token_norm": "model.layers.{}.enorm.weight",
            "hidden_norm": "model.layers.{}.hnorm.weight",
            "projection": "model.layers.{}.eh_proj.weight",
            "norm.weight": "model.layers.{}.transformer.shared_head.norm.weight",
        },
        first_number=2,
        copies=("model.layers.{}.transformer.shared_head.output.weight",),
        is_normed=False,
    ),
    "mtp-chain-target": ChainForm(
        keys=MIMO_KEYS,
        make_layer=_make_mimo,
        prefix="model.mtp.layers.{}.",
        extra={
            "token_norm": "model.mtp.layers.{}.enorm.weight",
            "hidden_norm": "model.mtp.layers.{}.hnorm.weight",
            "projection": "model.mtp.layers.{}.eh_proj.weight",
            "norm.weight": "model.mtp.layers.{}.final_layernorm.weight",
        },
        renamed={
            "post_attention_layernorm": "pre_mlp_layernorm",
            "self_attn.sinks": "self_attn.attention_sink_bias",
        },
        is_chained=False,
    ),
}


def _format(name: str, form: ChainForm) -> DraftFormat:
    numbers = range(form.first_number, form.first_number + MODULES)
    copies = (copy.format(number) for copy in form.copies for number in numbers)
    return DraftFormat(
        name=name,
        algorithm=Algorithm.MTP_CHAIN,
        write=form.write,
        reference=form.read,
        num_steps=MODULES,
        topks=(1,),
        most_steps=MODULES,
        optional=frozenset(copies),
        state=chain_drafter_state,
    )


FORMATS = tuple(_format(name, form) for name, form in FORMS.items())
