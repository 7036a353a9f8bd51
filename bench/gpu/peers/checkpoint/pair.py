"""Copies the example pair, and records what transformers answers with its target.

Each answer is greedy in float32, and at each of its tokens the best logit is well above the second
one, so that an engine which sums in another order has the same answer.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from bench.gpu.peers.checkpoint.cycle import ANSWERS_FILE
from bench.gpu.peers.checkpoint.writing import MARK, code_hash, empty
from bench.gpu.peers.loads import BY_MODEL

MODELS = Path(__file__).resolve().parents[4] / "examples" / "models"
FOLDERS = ("target", "eagle3")
PROMPTS = 64
MARGIN = 1e-3
STRIDE = 8
"""Tokens between the beginnings of prompts."""
AT_ONCE = 96


def write_pair(folder: Path) -> None:
    """Write both checkpoints and the answers, unless this code did; the answers are the last file.

    Raises:
        CheckpointError: the folder contains what this program did not write.
        ValueError: the text has too few prompts whose answers are clear.
    """
    code = code_hash()
    if (folder / MARK).exists() and (folder / MARK).read_text() == code:
        return
    empty(folder)
    for name in FOLDERS:
        shutil.copytree(MODELS / name, folder / name)
    found = [one for _, one in zip(range(PROMPTS), _clear_answers(folder), strict=False)]
    if len(found) < PROMPTS:
        raise ValueError(f"{len(found)} prompts have clear answers; {PROMPTS} are needed")
    (folder / ANSWERS_FILE).write_text(json.dumps(found))
    (folder / MARK).write_text(code)


def _clear_answers(folder: Path) -> Iterator[tuple[list[int], list[int]]]:
    lengths, prompts = BY_MODEL["pair"].decode, [*_prompts(BY_MODEL["pair"].decode.prompt)]
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    model.generation_config.eos_token_id = None  # an answer is as long as requested
    model.generation_config.pad_token_id = 0
    for first in range(0, len(prompts), AT_ONCE):
        ids = torch.tensor(prompts[first : first + AT_ONCE])
        with torch.inference_mode():
            done = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=lengths.long,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = torch.stack(done.logits).topk(2).values  # [tokens, prompts, 2]
        clear = (best[..., 0] - best[..., 1]).amin(0) >= MARGIN
        answers = done.sequences[:, ids.shape[1] :].tolist()
        yield from (
            (prompt, answer)
            for prompt, answer, is_clear in zip(ids.tolist(), answers, clear, strict=True)
            if is_clear
        )


def _prompts(length: int) -> Iterator[list[int]]:
    """Yield pieces of the texts that drafts are measured with, no two of them equal."""
    tokenizer = Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))
    texts = [one["text"] for one in json.loads((MODELS / "prompts.json").read_text())]
    tokens = tokenizer.encode("\n".join(texts), add_special_tokens=False).ids
    pieces = (tokens[first : first + length] for first in range(0, len(tokens) - length, STRIDE))
    yield from (list(one) for one in dict.fromkeys(map(tuple, pieces)))
