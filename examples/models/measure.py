"""Measure how many tokens a verify pass emits with each draft: slow, cacheless, plain to read.

Greedy chains of drafted tokens over the held-out prompts; one step is one target forward.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import LlamaForCausalLM

from recipe import answers, dflash, eagle, eagle3, parts, target, vocabulary
from recipe.documents import Prompt

FOLDER = Path(__file__).parent
DEPTH = 3  # tokens drafted for a step, where no flag sets another number

Draft = Callable[[list[int], int], list[int]]  # all ids so far, the bonus last; depth -> drafted


def best(model: LlamaForCausalLM, ids: list[int]) -> list[int]:
    """Give the model's most likely next token after every position of ids."""
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].argmax(-1).tolist()


def standalone(draft: LlamaForCausalLM) -> Draft:
    """Draft with a small model that reads the ids as they are."""

    def propose(ids: list[int], depth: int) -> list[int]:
        drafted: list[int] = []
        for _ in range(depth):
            drafted.append(best(draft, ids + drafted)[-1])
        return drafted

    return propose


def foreseeing(head: eagle.Eagle, model: LlamaForCausalLM) -> Draft:
    """Draft with an EAGLE head: true features of all but the last id, then its own outputs."""

    def propose(ids: list[int], depth: int) -> list[int]:
        features = eagle.features(model, torch.tensor([ids[:-1]]))
        return unrolled(
            ids,
            depth,
            model,
            unroll=lambda embedded: head.unroll(features, embedded),
            choose=lambda last: int(model.lm_head(last).argmax()),
        )

    return propose


def headed(head: eagle3.Eagle3, model: LlamaForCausalLM) -> Draft:
    """Draft with an EAGLE-3 head, whose features come from three layers."""

    def propose(ids: list[int], depth: int) -> list[int]:
        features, _ = eagle3.features(model, torch.tensor([ids[:-1]]))
        return unrolled(
            ids,
            depth,
            model,
            unroll=lambda embedded: head.unroll(features, embedded),
            choose=lambda last: int(head.target_ids()[head.logits(last).argmax()]),
        )

    return propose


def in_blocks(draft: dflash.DFlash, model: LlamaForCausalLM) -> Draft:
    """Draft with a DFlash draft, which computes all of its block and keeps the first tokens."""

    def propose(ids: list[int], depth: int) -> list[int]:
        features, _ = eagle3.features(model, torch.tensor([ids[:-1]]))
        bonus, anchor = torch.tensor([ids[-1:]]), torch.tensor([len(ids) - 1])
        rows = draft.blocks(model, features, bonus, anchor)[0, 0]
        drafted: list[int] = model.lm_head(rows[:depth]).argmax(-1).tolist()
        return drafted

    return propose


def unrolled(
    ids: list[int],
    depth: int,
    model: LlamaForCausalLM,
    unroll: Callable[[list[Tensor]], list[Tensor]],  # embedded tokens of each step -> outputs
    choose: Callable[[Tensor], int],  # an output [H] -> the likeliest id
) -> list[int]:
    """Run a head step by step over the same rows, of which only the last is needed."""
    embedded = [parts.embed(model, torch.tensor([ids[1:]]))]
    drafted: list[int] = []
    for _ in range(depth):
        drafted.append(choose(unroll(embedded)[-1][0, -1]))
        embedded.append(parts.embed(model, torch.tensor([[drafted[-1]] * (len(ids) - 1)])))
    return drafted


def speculate(
    model: LlamaForCausalLM,
    draft: Draft,
    prompt: list[int],
    limit: int,
    ends: list[int],
    depth: int,
) -> tuple[list[int], int]:
    """Decode greedily with a draft; give the emitted ids and the number of verify steps."""
    emitted = [best(model, prompt)[-1]]  # the prefill gives the first token
    rounds = 0
    while len(emitted) < limit and emitted[-1] not in ends:
        ids = prompt + emitted
        drafted = draft(ids, depth)
        wanted = best(model, ids + drafted)[len(ids) - 1 :]  # depth + 1 tokens of the target
        accepted = 0
        while accepted < depth and drafted[accepted] == wanted[accepted]:
            accepted += 1
        rounds += 1
        for token in wanted[: accepted + 1]:
            emitted.append(token)
            if token in ends or len(emitted) == limit:
                break
    return emitted, rounds


def held_out(path: Path) -> list[Prompt]:
    """Read the held-out prompts."""
    return [Prompt(**entry) for entry in json.loads(path.read_text())]


@torch.inference_mode()
def measure(folder: Path, chosen: list[Prompt], limit: int, depth: int) -> dict[str, object]:
    """Give the accept length of every draft, by kind and topic too, and the check on the text."""
    model = target.load(folder / "target")
    tokenizer = vocabulary.load(folder / "target")
    ends = [vocabulary.TURN_END_ID, vocabulary.END_OF_TEXT_ID]
    drafts = {
        "standalone": standalone(target.load(folder / "draft")),
        "eagle": foreseeing(eagle.load(folder / "eagle", model), model),
        "eagle3": headed(eagle3.load(folder / "eagle3", model), model),
        "dflash": in_blocks(dflash.load(folder / "dflash", model), model),
    }
    counts = {name: dict[str, list[int]]() for name in drafts}
    equal = True
    for prompt in tqdm(chosen, desc="measure", unit="prompt"):
        ids = tokenizer.encode(answers.opening(prompt)).ids
        plain = model.generate(
            input_ids=torch.tensor([ids]), max_new_tokens=limit, do_sample=False
        )[0, len(ids) :].tolist()
        for name, draft in drafts.items():
            emitted, rounds = speculate(model, draft, ids, limit, ends, depth)
            equal &= emitted == plain
            for key in ("all", prompt.kind, f"{prompt.kind}/{prompt.topic}"):
                tally = counts[name].setdefault(key, [0, 0])
                tally[0] += len(emitted) - 1  # the first token is the prefill's
                tally[1] += rounds
    lengths = {
        name: {key: round(tokens / max(1, rounds), 3) for key, (tokens, rounds) in tally.items()}
        for name, tally in counts.items()
    }
    result: dict[str, object] = {
        name: {
            "accept_length": by_key.pop("all"),
            "tokens": counts[name]["all"][0],
            "rounds": counts[name]["all"][1],
            "by_topic": dict(sorted(by_key.items())),
        }
        for name, by_key in lengths.items()
    }
    return result | {"greedy_equal": equal}


def main() -> None:
    """Read the flags, measure, print JSON."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the models lie")
    parser.add_argument("--prompts", type=int, help="use only so many, spread over the file")
    parser.add_argument("--tokens", type=int, default=96, help="most tokens to write per prompt")
    parser.add_argument("--depth", type=int, default=DEPTH, help="tokens drafted for a step")
    flags = parser.parse_args()
    if not 1 <= flags.depth < dflash.BLOCK:
        parser.error(f"--depth is {flags.depth}; a block drafts 1 to {dflash.BLOCK - 1} tokens")
    torch.set_num_threads(1)
    chosen = held_out(flags.folder / "prompts.json")
    if flags.prompts:
        chosen = chosen[:: max(1, len(chosen) // flags.prompts)][: flags.prompts]
    print(json.dumps(measure(flags.folder, chosen, flags.tokens, flags.depth), indent=2))


if __name__ == "__main__":
    main()
