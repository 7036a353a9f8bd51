"""Random speculative runs on the device against plain decoding there: `make lossless`, on a GPU.

In float32 rounding depends on shapes on a GPU, so a near-tie may flip; in float64 none does. Both
are counted, float32 first.
"""

from collections.abc import Iterator
from pathlib import Path

from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.targets import LOSSLESS
from checks.lossless.cases import Material, draw_case
from checks.lossless.prompts import load_prompts
from checks.lossless.run import Models, build_plain, build_speculative, run_alone, run_case

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "models"
FOLDERS = {"STANDALONE": "draft", "EAGLE": "eagle", "EAGLE3": "eagle3"}
SEED = 1
USED = 0.85
"""Part of the section's time after which no case is begun."""


def measure(context: Context) -> Iterator[Row]:
    """Run cases while there is time; count requests whose tokens or whose end differ."""
    began_s, ends_s = context.clock(), context.section_ends_s
    dtypes = context.scale.lossless_dtypes
    for number, dtype in enumerate(dtypes, start=1):
        until_s = began_s + USED * number / len(dtypes) * (ends_s - began_s)
        cases, requests, wrong = _compare(context, dtype, until_s)
        note = f"{cases} cases, {requests} requests, seed {SEED}"
        yield Row(f"requests that differ, {dtype}", wrong, "", target=LOSSLESS, note=note)


def _compare(context: Context, dtype: str, until_s: float) -> tuple[int, int, int]:
    from transformers import AutoTokenizer  # takes seconds, which no other section needs

    drafts = {algorithm: EXAMPLES / folder for algorithm, folder in FOLDERS.items()}
    models = Models(EXAMPLES / "target", drafts, dtype, device=context.device.type)
    tokenizer = AutoTokenizer.from_pretrained(models.target)
    material = Material(load_prompts(EXAMPLES, tokenizer), len(tokenizer))
    plain_core = build_plain(models)
    cases = requests = wrong = 0
    for number in range(context.scale.lossless_cases):
        if context.clock() >= until_s:
            break
        case = draw_case(number, SEED, material)
        core = build_speculative(case, models)
        requested = case.requests[: context.scale.lossless_requests]
        answers = run_case(core, requested, case.preempted_at_steps)
        for request, answer in zip(requested, answers, strict=True):
            if answer.finish_reason != "abort":
                plain = run_alone(plain_core, request)
                is_same = plain.token_ids == answer.token_ids
                wrong += not is_same or plain.finish_reason != answer.finish_reason
                requests += 1
        cases += 1
    return cases, requests, wrong
