"""Training of the EAGLE head: foresee features and what follows from them, step after step."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, smooth_l1_loss

from recipe import answers, eagle, parts, target, vocabulary
from recipe.batches import descend, pack

SEED = 14
UNROLLED = 4  # steps the head runs over its own outputs; served drafts are as deep or less
DECAY = 0.8  # weight of each step's loss relative to the step before


def train(folder: Path, target_folder: Path, answers_path: Path, steps: int) -> float:
    """Train the head for the target into `folder`; return the seconds of the descent."""
    torch.manual_seed(SEED)
    teacher = target.load(target_folder).requires_grad_(False)
    tokenizer = vocabulary.load(target_folder)
    head = eagle.fresh(teacher).train()
    batches = pack(answers.mixed(answers_path, SEED), tokenizer)

    def losses() -> Tensor:
        ids = next(batches)  # [rows, row_tokens]
        rows = ids.shape[1] - UNROLLED - 1  # every step of a row must have a token and a teacher
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                features = eagle.features(teacher, ids).float()
                wanted = teacher.lm_head(features).float().softmax(-1)
                embedded = [
                    parts.embed(teacher, ids[:, 1 + s : 1 + s + rows]) for s in range(UNROLLED)
                ]
            foreseen = head.unroll(features[:, :rows], embedded)
            scores = [teacher.lm_head(feature).float() for feature in foreseen]
        total = torch.zeros(())
        for step in range(UNROLLED):
            span = slice(1 + step, 1 + step + rows)
            loss = smooth_l1_loss(foreseen[step].float(), features[:, span])
            loss = loss + cross_entropy(scores[step].flatten(0, 1), wanted[:, span].flatten(0, 1))
            total = total + DECAY**step * loss
        return total

    seconds = descend("eagle", head, losses, steps)
    eagle.save(head, teacher, folder)
    return seconds
