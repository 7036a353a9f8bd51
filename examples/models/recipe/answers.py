"""What the target itself says to training prompts: the text that its drafts will have to guess."""

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from tqdm import tqdm
from transformers import LlamaForCausalLM

from recipe import vocabulary
from recipe.documents import END_OF_TEXT, TURN_END, TURN_START, Prompt, documents, prompts

ANSWER_TOKENS = 160
MOST_OF_A_TOPIC = 65


def opening(prompt: Prompt) -> str:
    """Write a prompt as the text that stands before the answer."""
    if prompt.kind == "text":
        return prompt.text
    return f"{TURN_START}user\n{prompt.text}{TURN_END}\n{TURN_START}assistant\n"


def generate(target: LlamaForCausalLM, tokenizer: Tokenizer, seed: int, count: int) -> list[str]:
    """Let the target answer `count` training prompts greedily; give prompt and answer as text."""
    known = prompts(seed, count, per_topic=MOST_OF_A_TOPIC, held_out=False)
    asked = [tokenizer.encode(opening(prompt)).ids for prompt in known]
    asked.sort(key=len)
    texts = []
    for at in tqdm(range(0, count, 64), desc="answers", unit="batch"):
        batch = asked[at : at + 64]
        width = max(map(len, batch))
        padding = [width - len(ids) for ids in batch]
        end = vocabulary.END_OF_TEXT_ID
        ids = torch.tensor([[end] * pad + row for pad, row in zip(padding, batch, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding])
        written = target.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=ANSWER_TOKENS, do_sample=False
        )
        for row, pad in zip(written.tolist(), padding, strict=True):
            text = tokenizer.decode(row[pad:], skip_special_tokens=False)
            texts.append(text.split(END_OF_TEXT)[0] + END_OF_TEXT)
    return texts


def save(texts: list[str], path: Path) -> None:
    """Keep the answers for the drafts."""
    path.write_text(json.dumps(texts))


def mixed(path: Path, seed: int) -> Iterator[str]:
    """Yield training text for the drafts for ever: an answer of the target, a document, ..."""
    answers = json.loads(path.read_text())
    Random(seed).shuffle(answers)
    for answer, document in zip(cycle(answers), documents(seed), strict=False):
        yield answer
        yield document
