"""Texts of random cases against decoding without a draft."""

from dataclasses import replace
from itertools import count, islice

from checks.drafts_zoo.format import DraftFiles, FormatSettings
from checks.drafts_zoo.targets import VOCAB
from checks.lossless.cases import Case, as_chain, draw_case, with_most_steps
from checks.lossless.compare import find_difference
from checks.lossless.run import Models, build_plain, build_speculative, run_alone, run_case
from checks.zoo.lossless_runs import make_material
from specdecode_engine.batch.request import FinishReason

CASES = 20
MOST_RUN = 10  # cases for each one that drafts


def find_other_text(
    form: FormatSettings, files: DraftFiles, seed: int, cases: int = CASES
) -> str | None:
    """Return the first difference from decoding without a draft.

    Args:
        cases: random cases to run in which something is drafted; NGRAM may find no match.
    """
    models = _models(form, files)
    plain, material = build_plain(models), make_material(VOCAB)
    drawn = (draw_case(number, seed, material) for number in count())
    with_draft_steps = (case for case in drawn if case.num_steps)
    drafting = 0
    for case in islice(with_draft_steps, MOST_RUN * cases):
        fitted = _fitted(case, form)
        core = build_speculative(fitted, models)
        answers = run_case(core, fitted.requests, fitted.preempted_at_steps)
        for request, answer in zip(fitted.requests, answers, strict=True):
            is_aborted = answer.finish_reason is FinishReason.ABORT
            expected = run_alone(plain, request)
            difference = find_difference(expected, answer, is_aborted, models.dtype)
            if difference is not None:
                return f"case {case.number} of seed {seed}: {difference}"
        drafting += core.counters.decode.drafted_tokens > 0
        if drafting == cases:
            return None
    return f"only {drafting} of {MOST_RUN * cases} cases drafted anything"


def _models(form: FormatSettings, files: DraftFiles) -> Models:
    drafts = {} if files.draft is None else {form.algorithm.value: files.draft}
    return Models(files.target, drafts, "float32", speculation=form.speculation)


def _fitted(case: Case, form: FormatSettings) -> Case:
    """Return a case that the format can run: its algorithm and draft steps, and perhaps no tree."""
    case = replace(case, algorithm=form.algorithm.value)
    if not form.algorithm.takes_draft:
        case = replace(case, has_fallback=False, verify_tokens=None)
    case = with_most_steps(case, form.most_steps)
    return case if max(form.topks) > 1 else as_chain(case)
