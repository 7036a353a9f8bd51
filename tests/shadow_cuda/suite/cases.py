"""The engines that run on the shadow device, what they are asked, and what happens meanwhile."""

from dataclasses import dataclass, field, replace
from itertools import cycle, product

from checks.lossless.families import LATENT, LLAMA, LONGROPE, MIXTURES
from checks.lossless.recurrent_families import CONVOLUTION, DELTA
from specdecode_engine.adaptive.table import BatchRange, RangeTable

FLASHINFER_DIM = 64
"""A head dimension that FlashInfer has kernels for, of 16-bit types."""
SINGLE = "single"
"""One greedy request."""
GREEDY, SAMPLED, SCORED, GRAMMAR, MIXED = KINDS = (
    "greedy",
    "sampled",  # with penalties and filters
    "scored",  # greedy, with log-probabilities of output and prompt
    "grammar",  # greedy, all but the first request
    "mixed",  # one request of each kind
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowCase:
    """One engine and its requests.

    Every engine has requests that join while others decode; `events` happen at numbered steps.
    """

    name: str
    algorithm: str = "NONE"
    topk: int = 1
    graphs: str = "off"
    overlap: bool = True
    dtype: str = "float32"
    kv_cache_dtype: str = "auto"
    implementation: str = "auto"  # of the target
    requests: str = GREEDY
    family: str = LLAMA  # of the target
    head_dim: int = 16
    device_bytes: int = 2 << 30
    speculation: dict[str, object] = field(default_factory=dict)
    max_capture_seconds: float = 60.0  # at start
    draws_verify_rows: bool = False  # for every request and step, at random
    preempted_at_step: int | None = None
    aborted_at_step: int | None = None
    reloaded_at_step: int | None = None
    unfit_at_step: int | None = None  # when the draft is found not to fit
    exchanged_at_step: int | None = None  # from when on the draft is exchanged, piece by piece
    table: tuple[BatchRange, ...] = ()  # to reload
    waves: int = 1  # later ones find their prompts in the prefix cache
    in_unit_tests: bool = False

    @property
    def returns_experts(self) -> bool:
        """Whether every request has return_routed_experts."""
        return self.family in MIXTURES

    @property
    def results(self) -> int:
        """Steps whose results a step waits for: NGRAM drafts after the tokens of that in flight."""
        has_ngram = self.algorithm == "NGRAM" or "fallback" in self.speculation
        return 2 if has_ngram and self.overlap else 1

    @property
    def reloaded_table(self) -> RangeTable:
        return RangeTable(self.table, "reloaded")


BY_RANGE: dict[str, object] = {
    "table": {"1": {"candidate_steps": [3]}, "3": {"candidate_steps": [1]}}
}
PAUSED_BY_RANGE: dict[str, object] = {
    "table": {"1": {"candidate_steps": [3]}, "2": {"candidate_steps": [0]}}
}
TWO_CANDIDATES: dict[str, object] = {"table": {"1": {"candidate_steps": [1, 3]}}}
FALLBACK: dict[str, object] = {"fallback": "NGRAM"}
TRIE: dict[str, object] = {"ngram": {"source": "trie"}}
GOODPUT: dict[str, object] = {
    "policy": "goodput",
    "profile_seconds": 0.05,
    "table": {"1": {"candidate_steps": [1, 3]}, "3": {"candidate_steps": [0, 1]}},
}


def _grid() -> tuple[ShadowCase, ...]:
    """Every algorithm, chain and tree, with and without graphs and overlap; kinds take turns."""
    kinds, cases = cycle(KINDS), []
    shapes = [("NONE", 1), *product(("STANDALONE", "EAGLE", "EAGLE3"), (1, 2))]
    for (algorithm, topk), graphs, overlap in product(shapes, ("off", "cuda"), (True, False)):
        parts = [algorithm.lower(), "tree" if topk > 1 else "chain", graphs]
        kind = next(kinds)
        name = "-".join((*parts, "overlap" if overlap else "sync", kind))
        cases.append(
            ShadowCase(
                name=name,
                algorithm=algorithm,
                topk=topk,
                graphs=graphs,
                overlap=overlap,
                requests=kind,
            )
        )
    return tuple(cases)


_EAGLE3 = ShadowCase(name="eagle3", algorithm="EAGLE3", graphs="cuda")
_EVENTS = (
    replace(_EAGLE3, name="preempted", preempted_at_step=5, requests=MIXED),
    replace(_EAGLE3, name="preempted-tree", topk=2, graphs="off", preempted_at_step=6),
    replace(_EAGLE3, name="waves", waves=2, requests=SAMPLED),
    replace(_EAGLE3, name="waves-tree", algorithm="EAGLE", topk=2, waves=2),
    replace(_EAGLE3, name="aborted", aborted_at_step=7, requests=MIXED),
    replace(_EAGLE3, name="by-range", speculation=BY_RANGE),
    replace(_EAGLE3, name="catch-up", speculation=PAUSED_BY_RANGE),
    replace(_EAGLE3, name="mtp", algorithm="MTP", requests=MIXED, preempted_at_step=5, waves=2),
    replace(_EAGLE3, name="mtp-tree", algorithm="MTP", topk=2, graphs="off", requests=SAMPLED),
    replace(
        _EAGLE3, name="chain", algorithm="MTP_CHAIN", requests=MIXED, preempted_at_step=5, waves=2
    ),
    replace(_EAGLE3, name="chain-eager", algorithm="MTP_CHAIN", graphs="off", requests=SCORED),
    replace(_EAGLE3, name="chain-catch-up", algorithm="MTP_CHAIN", speculation=PAUSED_BY_RANGE),
    replace(_EAGLE3, name="chain-by-range", algorithm="MTP_CHAIN", speculation=BY_RANGE),
    replace(
        _EAGLE3,
        name="frozen",
        algorithm="FROZEN_KV_MTP",
        requests=MIXED,
        preempted_at_step=5,
        waves=2,
    ),
    replace(_EAGLE3, name="frozen-tree", algorithm="FROZEN_KV_MTP", topk=2, requests=SAMPLED),
    replace(_EAGLE3, name="frozen-eager", algorithm="FROZEN_KV_MTP", topk=2, graphs="off"),
    replace(
        _EAGLE3, name="frozen-by-range", algorithm="FROZEN_KV_MTP", speculation=PAUSED_BY_RANGE
    ),
    replace(
        _EAGLE3,
        name="frozen-windows",
        algorithm="FROZEN_KV_MTP",
        family="qwen3",
        topk=2,
        dtype="bfloat16",
        head_dim=FLASHINFER_DIM,
    ),
    replace(_EAGLE3, name="ngram", algorithm="NGRAM", requests=MIXED, preempted_at_step=5, waves=2),
    replace(_EAGLE3, name="ngram-tree", algorithm="NGRAM", topk=2, speculation=TRIE, waves=2),
    replace(_EAGLE3, name="ngram-sync", algorithm="NGRAM", overlap=False, requests=SCORED),
    replace(
        _EAGLE3, name="fallback", speculation=FALLBACK, requests=MIXED, preempted_at_step=5, waves=2
    ),
    replace(_EAGLE3, name="fallback-tree", topk=2, speculation=FALLBACK | TRIE, waves=2),
    replace(_EAGLE3, name="fallback-eager", graphs="off", speculation=FALLBACK, overlap=False),
    replace(_EAGLE3, name="fallback-unfit", speculation=FALLBACK, unfit_at_step=6),
    replace(_EAGLE3, name="catch-up-eagle", algorithm="EAGLE", speculation=PAUSED_BY_RANGE),
    replace(_EAGLE3, name="goodput", speculation=GOODPUT),
    replace(
        _EAGLE3,
        name="reloaded",
        speculation=TWO_CANDIDATES,
        reloaded_at_step=6,
        table=(BatchRange(1, (1,)),),
        requests=MIXED,
    ),
    replace(
        _EAGLE3,
        name="idle-capture",
        max_capture_seconds=0.0,
        waves=2,
        preempted_at_step=5,
        in_unit_tests=True,
    ),
)
_DRAFT_EVENTS = (
    replace(_EAGLE3, name="exchanged", exchanged_at_step=3, requests=MIXED, preempted_at_step=6),
    replace(_EAGLE3, name="exchanged-tree", algorithm="EAGLE", topk=2, exchanged_at_step=3),
    replace(_EAGLE3, name="exchanged-mtp", algorithm="MTP", graphs="off", exchanged_at_step=3),
    replace(_EAGLE3, name="exchanged-dflash", algorithm="DFLASH", exchanged_at_step=3),
    replace(_EAGLE3, name="exchanged-draft", algorithm="STANDALONE", exchanged_at_step=3),
    replace(_EAGLE3, name="unfit", unfit_at_step=5, requests=MIXED, preempted_at_step=7, waves=2),
    replace(_EAGLE3, name="unfit-tree", topk=2, graphs="off", unfit_at_step=5, waves=2),
    replace(_EAGLE3, name="unfit-dflash", algorithm="DFLASH", unfit_at_step=7, waves=2),
)
_VERIFY_ROWS = tuple(
    replace(case, name=f"verify-rows-{case.name}", draws_verify_rows=True)
    for case in (
        replace(_EAGLE3, name="chain", graphs="off", requests=MIXED, preempted_at_step=6),
        replace(_EAGLE3, name="tree", topk=3, graphs="off", requests=MIXED),
        replace(_EAGLE3, name="sync", algorithm="STANDALONE", graphs="off", overlap=False),
        replace(_EAGLE3, name="cuda-graphs", algorithm="EAGLE", topk=2, requests=SAMPLED),
        replace(_EAGLE3, name="bf16", graphs="off", dtype="bfloat16", head_dim=FLASHINFER_DIM),
    )
)
_VERIFY_TOKENS = tuple(
    replace(
        case,
        name=f"verify-tokens-{case.name}",
        speculation={"table": {"1": {"candidate_steps": [3], "verify_tokens": 1}}},
    )
    for case in (
        replace(_EAGLE3, name="graphs", requests=MIXED, preempted_at_step=6, in_unit_tests=True),
        replace(_EAGLE3, name="eager", graphs="off", requests=MIXED, overlap=False),
        replace(_EAGLE3, name="block", algorithm="DFLASH", requests=SAMPLED),
        replace(_EAGLE3, name="confidence", algorithm="DSPARK", requests=MIXED),
        replace(_EAGLE3, name="confidence-eager", algorithm="DSPARK", graphs="off"),
        replace(_EAGLE3, name="tree", topk=3, requests=MIXED, preempted_at_step=6),
        replace(_EAGLE3, name="tree-eager", algorithm="EAGLE", topk=3, graphs="off"),
    )
)
_TRANSFORMERS = tuple(
    replace(case, name=f"transformers-{case.name}", implementation="transformers")
    for case in (
        replace(_EAGLE3, name="eagle3", family=LONGROPE, requests=MIXED),
        replace(_EAGLE3, name="eagle3-tree", topk=2, graphs="off"),
        replace(_EAGLE3, name="standalone-tree", algorithm="STANDALONE", topk=2),
        replace(_EAGLE3, name="experts", family="qwen3_moe", requests=MIXED),
        replace(_EAGLE3, name="states", family=DELTA, requests=MIXED, preempted_at_step=5),
        replace(_EAGLE3, name="states-tree", family=DELTA, topk=2, requests=SAMPLED),
        replace(_EAGLE3, name="states-eager", family=DELTA, topk=2, graphs="off"),
        replace(_EAGLE3, name="convolutions", family=CONVOLUTION, requests=MIXED),
        replace(_EAGLE3, name="convolutions-tree", family=CONVOLUTION, topk=2, requests=SAMPLED),
    )
)
_FAMILIES = (
    replace(_EAGLE3, name="windows", family="qwen3", requests=MIXED, preempted_at_step=5, waves=2),
    replace(_EAGLE3, name="windows-tree", family="mistral", algorithm="EAGLE", topk=2, waves=2),
    replace(_EAGLE3, name="windows-eager", family="qwen2", graphs="off", requests=SCORED),
    replace(_EAGLE3, name="longrope-tree", family=LONGROPE, topk=2, preempted_at_step=5, waves=2),
    replace(_EAGLE3, name="experts", family="qwen3_moe", requests=MIXED, preempted_at_step=5),
    replace(_EAGLE3, name="experts-tree", family="qwen3_moe", topk=2, graphs="off"),
    replace(_EAGLE3, name="latents", family=LATENT, requests=MIXED, preempted_at_step=5, waves=2),
    replace(_EAGLE3, name="latents-tree", family=LATENT, topk=2, preempted_at_step=5),
    replace(
        _EAGLE3,
        name="latent-mtp",
        family=LATENT,
        algorithm="MTP",
        requests=MIXED,
        preempted_at_step=5,
        waves=2,
    ),
    replace(_EAGLE3, name="latent-mtp-tree", family=LATENT, algorithm="MTP", topk=2),
    replace(_EAGLE3, name="latents-eager", family=LATENT, graphs="off", requests=SCORED),
    replace(_EAGLE3, name="gemma3", family="gemma3_text", requests=MIXED, preempted_at_step=5),
    replace(
        _EAGLE3,
        name="gemma2-tree",
        family="gemma2",
        topk=2,
        dtype="bfloat16",
        head_dim=FLASHINFER_DIM,
    ),
    replace(_EAGLE3, name="sinks", family="gpt_oss", requests=MIXED, preempted_at_step=5, waves=2),
    replace(_EAGLE3, name="sinks-tree", family="gpt_oss", topk=2, graphs="off"),
)
_BLOCKS = (
    replace(
        _EAGLE3, name="dflash", algorithm="DFLASH", requests=MIXED, preempted_at_step=5, waves=2
    ),
    replace(_EAGLE3, name="dflash-tree", algorithm="DFLASH", topk=2, requests=SAMPLED),
    replace(_EAGLE3, name="dflash-eager", algorithm="DFLASH", graphs="off", requests=SCORED),
    replace(_EAGLE3, name="dflash-catch-up", algorithm="DFLASH", speculation=PAUSED_BY_RANGE),
    replace(_EAGLE3, name="dspark", algorithm="DSPARK", requests=MIXED, waves=2),
    replace(_EAGLE3, name="dspark-tree", algorithm="DSPARK", topk=2, requests=SAMPLED),
    replace(_EAGLE3, name="dspark-eager", algorithm="DSPARK", graphs="off"),
    replace(
        _EAGLE3, name="peagle", algorithm="PEAGLE", requests=MIXED, preempted_at_step=5, waves=2
    ),
    replace(_EAGLE3, name="peagle-tree", algorithm="PEAGLE", topk=2, requests=SAMPLED),
    replace(_EAGLE3, name="peagle-eager", algorithm="PEAGLE", graphs="off"),
    replace(_EAGLE3, name="peagle-catch-up", algorithm="PEAGLE", speculation=PAUSED_BY_RANGE),
    replace(_EAGLE3, name="dflash-bf16", algorithm="DFLASH", topk=2, dtype="bfloat16"),
)
LAUNCH_CASES = {
    "launches_eagle3_b1": replace(_EAGLE3, name="eagle3-b1", requests=SINGLE),
    "launches_tree2_b1": replace(_EAGLE3, name="tree2-b1", topk=2, requests=SINGLE),
}
"""Cases that count the launches of a steady decode step of one request, by figure."""
_TYPES = (
    replace(
        _EAGLE3, name="plain-bf16", algorithm="NONE", dtype="bfloat16", head_dim=FLASHINFER_DIM
    ),
    replace(
        _EAGLE3,
        name="plain-bf16-eager",
        algorithm="NONE",
        graphs="off",
        dtype="bfloat16",
        head_dim=FLASHINFER_DIM,
        preempted_at_step=6,
        waves=2,
    ),
    replace(_EAGLE3, name="eagle3-bf16", dtype="bfloat16", head_dim=FLASHINFER_DIM, requests=MIXED),
    replace(_EAGLE3, name="eagle3-tree-bf16", topk=2, dtype="bfloat16", head_dim=FLASHINFER_DIM),
    replace(
        _EAGLE3,
        name="standalone-bf16-eager",
        algorithm="STANDALONE",
        graphs="off",
        dtype="bfloat16",
        head_dim=FLASHINFER_DIM,
        requests=SCORED,
    ),
    replace(_EAGLE3, name="eagle3-fp8", kv_cache_dtype="fp8_e4m3", requests=MIXED),
    replace(_EAGLE3, name="eagle-tree-fp8", algorithm="EAGLE", topk=2, kv_cache_dtype="fp8_e4m3"),
    replace(
        _EAGLE3,
        name="eagle3-bf16-fp8",
        dtype="bfloat16",
        head_dim=FLASHINFER_DIM,
        kv_cache_dtype="fp8_e4m3",
        requests=SAMPLED,
    ),
)
_IN_UNIT_TESTS = (
    "none-chain-cuda-overlap-scored",
    "standalone-tree-cuda-sync-sampled",
    "eagle3-chain-cuda-overlap-scored",
    "eagle3-tree-off-overlap-mixed",
    "aborted",
    "catch-up",
    "windows",
    "experts",
    "sinks",
    "eagle3-bf16",
    "eagle3-fp8",
    "verify-rows-chain",
    "verify-rows-tree",
    "transformers-eagle3",
    "transformers-states",
    "dflash",
    "dflash-tree",
    "dspark",
    "chain",
    "peagle",
    "frozen-tree",
)

CASES: tuple[ShadowCase, ...] = tuple(
    replace(case, in_unit_tests=case.in_unit_tests or case.name in _IN_UNIT_TESTS)
    for case in (
        *_grid(),
        *_EVENTS,
        *_DRAFT_EVENTS,
        *_VERIFY_ROWS,
        *_VERIFY_TOKENS,
        *_FAMILIES,
        *_TYPES,
        *_TRANSFORMERS,
        *_BLOCKS,
    )
)
BY_NAME = {case.name: case for case in CASES}
