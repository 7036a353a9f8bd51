"""Small engines for the files of a format, in float32 on a CPU; unwritten KV is NaN."""

from collections.abc import Iterable, Mapping

from checks.drafts_zoo.format import DraftFiles, FormatSettings
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore

PAGE_SIZE = 4
CHUNK_TOKENS = 7


def boot_of(
    form: FormatSettings,
    files: DraftFiles,
    *,
    topk: int = 1,
    table: Mapping[str, object] | None = None,
    prefix_cache: bool = False,
    max_running: int = 4,
    has_fallback: bool = False,
) -> EngineBoot:
    """Return the boot file of an engine that drafts `num_steps` tokens of the format.

    Args:
        table: speculation table, for draft steps that change.
        has_fallback: whether NGRAM drafts next to a draft model.
    """
    speculation = {
        **({} if files.draft is None else {"draft_path": str(files.draft)}),
        "algorithm": form.algorithm.value,
        "num_steps": form.num_steps,
        "topk": topk,
        "policy": "ema" if table else "static",
        "table": table or {},
        "fallback": "NGRAM" if has_fallback and form.algorithm.takes_draft else None,
        **form.speculation,
    }
    document = {
        "model": {"path": str(files.target), "dtype": "float32"},
        "speculation": speculation,
        "memory": {"page_size": PAGE_SIZE, "prefix_cache": prefix_cache},
        "scheduling": {
            "max_running_requests": max_running,
            "chunked_prefill_tokens": CHUNK_TOKENS,
            "overlap": False,
        },
        "device": "cpu",
    }
    return EngineBoot.model_validate(document)


def build_drafting(
    form: FormatSettings, files: DraftFiles, *, topk: int = 1, max_running: int = 4
) -> EngineCore:
    """Build an engine that drafts `num_steps` tokens in every step."""
    return build_poisoned(boot_of(form, files, topk=topk, max_running=max_running))


def build_without_draft(files: DraftFiles) -> EngineCore:
    """Build an engine that decodes without a draft."""
    document = {"model": {"path": str(files.target), "dtype": "float32"}, "device": "cpu"}
    return build_poisoned(EngineBoot.model_validate(document))


def greedy(name: str, prompt: Iterable[int], max_tokens: int) -> Request:
    """Return a request for exactly `max_tokens` tokens."""
    sampling = SamplingParams(seed=0, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Request(name, tuple(prompt), sampling)


def decode(
    core: EngineCore, prompts: Iterable[Iterable[int]], max_tokens: int
) -> list[tuple[int, ...]]:
    """Decode prompts together, greedily; return the tokens after each."""
    answers: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        answers[str(number)] = []
        core.submit(greedy(str(number), prompt, max_tokens))
    while core.has_work():
        for output in core.step():
            answers[output.request_id] += output.token_ids
    return [tuple(answer) for answer in answers.values()]
