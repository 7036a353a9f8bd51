"""The standalone draft: a smaller Llama that learns to say what the target would say."""

import shutil
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from recipe import answers, target, vocabulary
from recipe.batches import descend, pack

SEED = 12
LAYERS, HIDDEN = 2, 64


def train(folder: Path, target_folder: Path, answers_path: Path, steps: int) -> float:
    """Distil the target into the draft in `folder`; return the seconds of the descent."""
    torch.manual_seed(SEED)
    teacher = target.load(target_folder)
    tokenizer = vocabulary.load(target_folder)
    student = target.small_llama(LAYERS, HIDDEN, intermediate=176, heads=4).train()
    batches = pack(answers.mixed(answers_path, SEED), tokenizer)

    def losses() -> torch.Tensor:
        ids = next(batches)  # [rows, row_tokens]
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                wanted = teacher(input_ids=ids, use_cache=False).logits.float().softmax(-1)
            logits = student(input_ids=ids, use_cache=False).logits
        return cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(0, 1))

    seconds = descend("draft", student, losses, steps)
    target.save(student, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(target_folder / name, folder / name)
    return seconds
