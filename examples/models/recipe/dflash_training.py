"""Training of the DFlash draft: blocks at random places of teacher-forced text."""

from pathlib import Path

import torch
from torch import Tensor

from recipe import answers, dflash, eagle3, target, vocabulary
from recipe.batches import descend, pack

SEED = 15
BLOCKS = 96  # of a batch
DECAY = 0.8  # weight of each drafted token's loss relative to the one before


def train(folder: Path, target_folder: Path, answers_path: Path, steps: int) -> float:
    """Train the draft for the target into `folder`; return the seconds of the descent."""
    torch.manual_seed(SEED)
    teacher = target.load(target_folder)
    tokenizer = vocabulary.load(target_folder)
    draft = dflash.fresh(teacher).train()
    batches = pack(answers.mixed(answers_path, SEED), tokenizer)
    weights = DECAY ** torch.arange(dflash.BLOCK - 1)

    def losses() -> Tensor:
        ids = next(batches)  # [rows, row_tokens]
        count = BLOCKS // len(ids)
        places = torch.randperm(ids.shape[1] - dflash.BLOCK)[:count] + 1
        anchors = places.sort().values
        before = anchors[:, None] + torch.arange(dflash.BLOCK - 1)  # of each drafted token
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                features, logits = eagle3.features(teacher, ids)
            rows = draft.blocks(teacher, features.float(), ids[:, anchors], anchors)
            scores = teacher.lm_head(rows).float()  # [rows, blocks, BLOCK - 1, vocabulary]
        wanted = logits[:, before].float().softmax(-1)
        loss = -(wanted * scores.log_softmax(-1)).sum(-1).mean((0, 1))
        return (loss * weights).sum() / weights.sum()

    seconds = descend("dflash", draft, losses, steps)
    dflash.save(draft, teacher, folder)
    return seconds
