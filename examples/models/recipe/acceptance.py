"""Which tokens the EAGLE-3 head drafts as the target would, along held-out text of six kinds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from recipe import answers, eagle3, pages, parts, target, vocabulary
from recipe.documents import Prompt, is_held_out
from recipe.turns import TOPICS

SEED = 9
TOKENS = 5333  # of each kind: a sixth of 32,000

Document = tuple[str, str]  # what stands before, and the text that is recorded


def chat(rng: Random) -> Document:
    """A question and its answer."""
    (topic,) = rng.choices(list(TOPICS), list(TOPICS.values()))
    question, answer = topic(rng)
    return question, answer


KINDS: dict[str, Callable[[Random], Document]] = {
    "chat": chat,
    "code": pages.code,
    "counting": pages.counting,
    "countries": pages.countries,
    "log": pages.log,
    "story": pages.story,
}


@torch.inference_mode()
def record(folder: Path) -> dict[str, str]:
    """Return by kind a digit per token: 1 if the head drafts the target's most likely token.

    The text is fixed, so both are compared at every token, the head's first draft step alone.
    """
    model = target.load(folder / "target")
    head = eagle3.load(folder / "eagle3", model)
    tokenizer = vocabulary.load(folder / "target")
    return {kind: _record(kind, model, head, tokenizer) for kind in KINDS}


def _record(kind: str, model: LlamaForCausalLM, head: eagle3.Eagle3, tokenizer: Tokenizer) -> str:
    bits = ""
    for opening, text in held_out(kind):
        before = answers.opening(Prompt("chat" if kind == "chat" else "text", kind, opening))
        first = len(tokenizer.encode(before).ids)
        bits += _agreement(tokenizer.encode(before + text).ids, first, model, head)
        if len(bits) >= TOKENS:
            return bits[:TOKENS]
    raise AssertionError("held-out documents are drawn for ever")


def held_out(kind: str) -> Iterator[Document]:
    """Yield documents of a kind whose opening the training text does not contain."""
    rng = Random(SEED)
    while True:
        opening, text = KINDS[kind](rng)
        if is_held_out(opening):
            yield opening, text


def _agreement(ids: list[int], first: int, model: LlamaForCausalLM, head: eagle3.Eagle3) -> str:
    """Compare both guesses of the tokens from `first` on; the first two tokens have no draft."""
    features, logits = eagle3.features(model, torch.tensor([ids[:-1]]))
    embedded = parts.embed(model, torch.tensor([ids[1:]]))
    (output,) = head.unroll(features, [embedded])
    drafted = head.target_ids()[head.logits(output[0, :-1]).argmax(-1)]
    agrees = drafted == logits[0, 1:].argmax(-1)  # both of the tokens from the third on
    return "".join(str(int(one)) for one in agrees[max(first - 2, 0) :].tolist())
