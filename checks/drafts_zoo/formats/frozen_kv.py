"""Gemma 4 assistants, which read the keys and values of a tiny Gemma 4 (layers of two types, the
last ones without keys and values of their own).

The reference is transformers' `Gemma4AssistantForCausalLM` with explicit keys and values: those of
a forward over the committed tokens, in sliding layers the latest ones that the bonus token sees.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from checks.drafts_zoo.fitting import fit
from checks.drafts_zoo.format import DraftFiles, DraftFormat, frozen_drafter_state
from checks.drafts_zoo.slow_layers import Tensors
from checks.drafts_zoo.targets import VOCAB, SlowTarget, write_target
from checks.zoo.models import randomise
from specdecode_api.speculation import Algorithm
from specdecode_engine.model.kv.layer_map import FULL, SLIDING
from specdecode_engine.speculate.frozen_drafter import POSITION

NUM_STEPS = 3
HIDDEN, WINDOW = 64, 16
LISTED = 40
EMBEDDING = "model.embed_tokens.weight"
CENTROIDS = "masked_embedding.centroids.weight"
ORDERING = "masked_embedding.token_ordering"


@dataclass(frozen=True, slots=True)
class SeenStates:
    """What a target left of one text of L tokens."""

    hidden: Tensor  # [L, hidden], after the final norm
    shared: dict[str, tuple[Tensor, Tensor]]  # by type of layer, [1, heads, L, dim] each


class SlowAssistant:
    """Drafts from keys and values that are computed again for every text."""

    def __init__(self, files: DraftFiles) -> None:
        from transformers import Gemma4AssistantForCausalLM

        assert files.draft is not None
        kind: Any = Gemma4AssistantForCausalLM
        options = {"dtype": torch.float64, "attn_implementation": "eager"}
        with _all_layers_shared():
            self.model: Any = kind.from_pretrained(files.draft, **options).eval()
        self.target = SlowTarget(files.target)

    def next_logits(self, committed: Sequence[int], drafted: Sequence[int]) -> Tensor | None:
        seen = _seen(self.target, tuple(committed[:-1]))
        shared = {
            kind: tuple(part[:, :, -(WINDOW - 1) :] if kind == SLIDING else part for part in pair)
            for kind, pair in seen.shared.items()
        }
        position = torch.tensor([[len(committed) - 1 + POSITION]])
        hidden = seen.hidden[None, -1:]
        for token in (committed[-1], *drafted):
            embedded = self.target.model.get_input_embeddings()(torch.tensor([[token]]))
            with torch.no_grad():
                output = self.model(
                    inputs_embeds=torch.cat((embedded, hidden), dim=-1),
                    position_ids=position,
                    shared_kv_states=shared,
                )
            hidden = output.last_hidden_state
        logits: Tensor = output.logits[0, -1]
        return logits.masked_fill(logits == logits.min(), -torch.inf)  # tokens that are not scored


def _seen(target: SlowTarget, text: tuple[int, ...]) -> SeenStates:
    with torch.no_grad():
        output = target.model.model(
            torch.tensor([text]), use_cache=False, return_shared_kv_states=True
        )
    return SeenStates(output.last_hidden_state[0], dict(output.shared_kv_states))


@contextmanager
def _all_layers_shared() -> Iterator[None]:
    """Let transformers 5.23 make assistants, which its check of shared layers refuses."""
    kind: Any = import_module("transformers").Gemma4TextConfig
    modes = property(lambda config: ["reuse"] * config.num_hidden_layers)
    with mock.patch.object(kind, "kv_sharing_modes", modes):
        yield


def _make(seed: int) -> Any:
    import transformers

    make_text: Any = transformers.Gemma4TextConfig
    text = make_text(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        global_head_dim=24,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        num_kv_shared_layers=3,
        layer_types=[SLIDING, SLIDING, FULL],
        sliding_window=WINDOW,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        max_position_embeddings=512,
    )
    config = transformers.Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=HIDDEN,
        use_ordered_embeddings=True,
        num_centroids=VOCAB,
        centroid_intermediate_top_k=LISTED,
    )
    config._attn_implementation = "eager"
    with _all_layers_shared():
        model: Any = transformers.Gemma4AssistantForCausalLM(config)
    randomise(model, seed)
    for layer in model.model.layers:
        layer.layer_scalar.fill_(0.8)
    generator = torch.Generator().manual_seed(seed)
    model.masked_embedding.token_ordering = torch.randperm(VOCAB, generator=generator)
    return model.double()


def write(folder: Path, seed: int, *, fit_steps: int = 60) -> DraftFiles:
    """Write the target and an assistant that is fitted to some of its texts."""
    files = DraftFiles(folder / "target", folder / "draft")
    write_target(files.target, "gemma4_text")
    target, model = SlowTarget(files.target), _make(seed)
    lessons = [_Lesson.of(target, text) for text in target.answered_prompts()]
    learned = dict(model.named_parameters())
    fitted = fit(
        learned,
        lambda w: torch.stack([one.loss(model, w) for one in lessons]).sum(),
        steps=fit_steps,
    )
    # Each centroid has one token, and scores as that does.
    fitted[CENTROIDS] = fitted[EMBEDDING][model.masked_embedding.token_ordering]
    model.load_state_dict(fitted, strict=False)
    model.float().save_pretrained(files.draft)
    return files


@dataclass(frozen=True, slots=True, eq=False)
class _Lesson:
    """A text at all its positions at once, each with the keys that a draft sees there."""

    ids: Tensor  # [T]
    embedded: Tensor  # [T, hidden]
    seen: SeenStates
    masks: dict[str, Tensor]  # by type of layer, [positions, 1, 1, T], added to scores

    @classmethod
    def of(cls, target: SlowTarget, text: tuple[int, ...]) -> "_Lesson":
        ids = torch.tensor(text)
        lengths, places = torch.arange(1, len(text) - NUM_STEPS)[:, None], torch.arange(len(text))
        shown = {FULL: places < lengths, SLIDING: places < lengths}
        shown[SLIDING] &= places > lengths - WINDOW
        masks = {
            kind: torch.zeros(one.shape, dtype=torch.float64).masked_fill(~one, -torch.inf)
            for kind, one in shown.items()
        }
        embedded = target.model.get_input_embeddings()(ids).detach()
        seen = _seen(target, text)
        return cls(ids, embedded, seen, {kind: one[:, None, None] for kind, one in masks.items()})

    def loss(self, model: Any, w: Tensors) -> Tensor:
        """Cross entropy of the tokens that are drafted after each position."""
        lengths = torch.arange(1, len(self.ids) - NUM_STEPS)
        count, total = len(lengths), torch.zeros((), dtype=torch.float64)
        shared = {
            kind: tuple(part.expand(count, -1, -1, -1) for part in pair)
            for kind, pair in self.seen.shared.items()
        }
        hidden = self.seen.hidden[lengths - 1]
        for step in range(NUM_STEPS):
            joined = torch.cat((self.embedded[lengths + step], hidden), dim=-1)[:, None]
            arguments = {
                "inputs_embeds": joined,
                "position_ids": lengths[:, None] + POSITION,
                "shared_kv_states": shared,
            }
            states: list[Tensor] = []
            note = partial(_append_output, states)
            hook = model.model.norm.register_forward_hook(note)
            with mock.patch.object(model, "create_attention_masks", return_value=self.masks):
                output = functional_call(model, w, kwargs=arguments)
            hook.remove()
            hidden = output.last_hidden_state[:, 0]
            scores = states[0][:, 0] @ w[EMBEDDING].T
            total = total + cross_entropy(scores, self.ids[lengths + step + 1])
        return total


def _append_output(states: list[Tensor], module: Any, inputs: Any, output: Tensor) -> None:
    states.append(output)


FORMATS = (
    DraftFormat(
        name="frozen-kv",
        algorithm=Algorithm.FROZEN_KV_MTP,
        write=write,
        reference=SlowAssistant,
        num_steps=NUM_STEPS,
        optional=frozenset({"lm_head.weight"}),
        state=frozen_drafter_state,
    ),
)
