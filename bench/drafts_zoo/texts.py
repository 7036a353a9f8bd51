"""Texts of random cases against decoding without a draft."""

from dataclasses import replace
from itertools import count, islice

from drafts_zoo.format import DraftFiles, DraftFormat
from drafts_zoo.targets import VOCAB
from lossless.cases import Case, draw_case
from lossless.compare import find_difference
from lossless.run import Models, build_plain, build_speculative, run_alone, run_case
from specdecode_engine.batch.request import FinishReason
from zoo.lossless_runs import make_material

CASES = 20


def find_other_text(
    form: DraftFormat, files: DraftFiles, seed: int, cases: int = CASES
) -> str | None:
    """Run random cases that draft; return the first difference from decoding without a draft."""
    models = _models(form, files)
    plain, material = build_plain(models), make_material(VOCAB)
    drawn = (draw_case(number, seed, material) for number in count())
    with_draft_steps = (case for case in drawn if case.num_steps)
    for case in islice(with_draft_steps, cases):
        fitted = _fitted(case, form)
        core = build_speculative(fitted, models)
        answers = run_case(core, fitted.requests, fitted.preempted_at_steps)
        for request, answer in zip(fitted.requests, answers, strict=True):
            is_aborted = answer.finish_reason is FinishReason.ABORT
            expected = run_alone(plain, request)
            difference = find_difference(expected, answer, is_aborted, models.dtype)
            if difference is not None:
                return f"case {case.number} of seed {seed}: {difference}"
    return None


def _models(form: DraftFormat, files: DraftFiles) -> Models:
    drafts = {} if files.draft is None else {form.algorithm.value: files.draft}
    return Models(files.target, drafts, "float32", speculation=form.speculation)


def _fitted(case: Case, form: DraftFormat) -> Case:
    """Return a case that the format can run: its algorithm, and a chain if it has no trees."""
    case = replace(case, algorithm=form.algorithm.value)
    return case if max(form.topks) > 1 else replace(case, topk=1, num_draft_tokens=None)
