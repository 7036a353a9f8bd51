"""Training of the EAGLE-3 head: teacher-forced text, unrolled over its own outputs."""

import json
from pathlib import Path

import torch
from torch import Tensor

from recipe import answers, eagle3, parts, target, vocabulary
from recipe.batches import descend, pack

SEED = 13
UNROLLED = 4  # steps the head runs over its own outputs; served drafts are as deep or less
DECAY = 0.8  # weight of each step's loss relative to the step before


def _counts(path: Path, folder: Path) -> Tensor:
    """Count the target ids in the target's own answers and as much document text."""
    tokenizer = vocabulary.load(folder)
    texts = answers.mixed(path, SEED)
    number = 4 * len(json.loads(path.read_text()))
    ids = [i for _ in range(number) for i in tokenizer.encode(next(texts)).ids]
    return torch.bincount(torch.tensor(ids), minlength=vocabulary.VOCAB_SIZE)


def _step_loss(scores: Tensor, teacher: Tensor, head: eagle3.Eagle3) -> Tensor:
    """Cross-entropy of draft scores [N, D] against teacher logits [N, vocabulary].

    The teacher is cut down to the draft vocabulary; rows whose best token is outside do not count.
    """
    inside = head.t2d[teacher.argmax(-1)]
    wanted = teacher[:, head.target_ids()].softmax(-1)
    losses = -(wanted * scores.log_softmax(-1)).sum(-1)
    return (losses * inside).sum() / inside.sum().clamp(min=1)


def train(folder: Path, target_folder: Path, answers_path: Path, steps: int) -> float:
    """Train the head for the target into `folder`; return the seconds of the descent."""
    torch.manual_seed(SEED)
    teacher = target.load(target_folder)
    tokenizer = vocabulary.load(target_folder)
    head = eagle3.fresh(teacher).train()
    head.choose_vocabulary(_counts(answers_path, target_folder))
    batches = pack(answers.mixed(answers_path, SEED), tokenizer)

    def losses() -> Tensor:
        ids = next(batches)  # [rows, row_tokens]
        rows = ids.shape[1] - UNROLLED - 1  # every step of a row must have a token and a teacher
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                features, logits = eagle3.features(teacher, ids)
                embedded = [
                    parts.embed(teacher, ids[:, 1 + s : 1 + s + rows]) for s in range(UNROLLED)
                ]
            hidden = head.unroll(features[:, :rows].float(), embedded)
            scores = [head.logits(h).float() for h in hidden]
        total = torch.zeros(())
        for step in range(UNROLLED):
            wanted = logits[:, 1 + step : 1 + step + rows].float()
            loss = _step_loss(scores[step].flatten(0, 1), wanted.flatten(0, 1), head)
            total = total + DECAY**step * loss
        return total

    seconds = descend("eagle3", head, losses, steps)
    eagle3.save(head, teacher, folder)
    return seconds
