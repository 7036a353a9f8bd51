"""How large everything is: of a real run, and of one that only tries the script out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Shape of a target; its draft has one layer of the same."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    dtype: str


@dataclass(frozen=True, slots=True)
class MixtureSize:
    """Shape of a mixture whose layers all have experts, besides that of its attention."""

    experts: int
    top_k: int
    inner: int  # of an expert


@dataclass(frozen=True, slots=True)
class Scale:
    """All sizes of a run."""

    model: ModelSize
    mixture_model: ModelSize
    mixture: MixtureSize
    head_depths: tuple[int, ...]  # draft steps of a block drafter and of an EAGLE-3 head
    head_batches: tuple[int, ...]
    kv_cache_bytes: int
    batches: tuple[int, ...]  # G1, G2 and the sizes that are captured
    most_running: int
    prompt_tokens: int  # G1, G2
    short_prompt_tokens: int  # G7, G8
    depths: tuple[int, ...]
    divided_depths: tuple[int, ...]
    verify_tokens: int  # of steps of divided_depths that draft more
    timed_steps: int
    learning_steps: int  # of the adaptive policy, before its timed steps
    fewest_tokens: int  # of an arm of G8, at one token a step: acceptance varies from step to step
    copy_bytes: int
    gemm: int  # rows, columns and depth of the product
    lossless_cases: int
    lossless_requests: int | None  # of a case; None: all
    lossless_dtypes: tuple[str, ...]
    captured_kinds: tuple[tuple[str, int], ...]  # drafter and topk
    capture_dtype: str
    captured_answer_tokens: int
    attention_contexts: tuple[int, ...]
    attention_batches: tuple[int, ...]
    attention_queries: tuple[int, ...]
    answer_tokens: int  # peers
    profile_seconds: float  # of goodput
    threads: int | None
    repeats: int  # of a timed call
    flushed_bytes: int  # written before each; on a GPU more than any second-level cache holds


_8B = ModelSize(32, 4096, 14336, 32, 8, 128, 128_256, 2048, "bfloat16")
_30B_A3B = ModelSize(48, 2048, 6144, 32, 4, 128, 151_936, 2048, "bfloat16")
_TINY = ModelSize(2, 32, 64, 4, 2, 64, 128, 512, "bfloat16")

REAL = Scale(
    model=_8B,
    mixture_model=_30B_A3B,
    mixture=MixtureSize(experts=128, top_k=8, inner=768),
    head_depths=(1, 3, 5, 7, 15),
    head_batches=(1, 2, 4, 8),
    kv_cache_bytes=14 << 30,
    batches=(1, 8, 64),
    most_running=128,
    prompt_tokens=1024,
    short_prompt_tokens=128,
    depths=(0, 1, 3, 7),
    divided_depths=(0, 1, 2, 3, 7),
    verify_tokens=2,
    timed_steps=32,
    learning_steps=96,
    fewest_tokens=128,
    copy_bytes=1 << 30,
    gemm=8192,
    lossless_cases=200,
    lossless_requests=None,
    lossless_dtypes=("float32", "float64"),
    captured_kinds=tuple((kind, k) for kind in ("STANDALONE", "EAGLE", "EAGLE3") for k in (1, 4)),
    capture_dtype="float64",
    captured_answer_tokens=48,
    attention_contexts=(1024, 4096, 32_768),
    attention_batches=(1, 8, 64),
    attention_queries=(1, 2, 4, 8, 16),
    answer_tokens=128,
    profile_seconds=8.0,
    threads=None,
    repeats=50,
    flushed_bytes=256 << 20,
)

DRY = Scale(
    model=_TINY,
    mixture_model=_TINY,
    mixture=MixtureSize(experts=4, top_k=2, inner=16),
    head_depths=(1, 3),
    head_batches=(1,),
    kv_cache_bytes=8 << 20,
    batches=(1, 2),
    most_running=4,
    prompt_tokens=24,
    short_prompt_tokens=8,
    depths=(0, 1, 2),
    divided_depths=(0, 1, 2),
    verify_tokens=1,
    timed_steps=4,
    learning_steps=4,
    fewest_tokens=4,
    copy_bytes=1 << 20,
    gemm=64,
    lossless_cases=1,
    lossless_requests=2,
    lossless_dtypes=("float32",),
    captured_kinds=(("STANDALONE", 1),),
    capture_dtype="float32",
    captured_answer_tokens=12,
    attention_contexts=(32,),
    attention_batches=(1,),
    attention_queries=(1, 2),
    answer_tokens=6,
    profile_seconds=0.2,
    threads=1,
    repeats=1,
    flushed_bytes=1 << 10,
)
