"""Implementations of models: CPU time of a step through transformers next to a native one, and
tokens per CPU second, through transformers and natively, next to transformers' own `generate`.

Both sides take turns in one process, step by step or answer by answer; a figure is the median of
the ratios of neighbours.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from bench.cpu.peers.epsilon_pair import SIZE_82M, STRONG, Size, write_pair
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.profiling import decoding

Prompts = Sequence[Sequence[int]]

WARM_UP = 3
EXPERTS = 32
EXPERTS_OF_A_TOKEN = 4
WINDOW = 32
CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Turns:
    """How much is measured, and on what."""

    size: Size
    steps: int  # pairs of steps
    answers: int  # pairs of answers
    prompt: int = 32  # tokens
    answer: int = 32  # tokens
    step_batches: tuple[int, ...] = (1, 8, 32)
    answer_batches: tuple[int, ...] = (1, 8)


QUICK = Turns(SIZE_82M, steps=30, answers=2)
FULL = Turns(SIZE_82M, steps=100, answers=7)


def measure_implementations(turns: Turns) -> dict[str, object]:
    """Compare a Llama and a Gemma 3 with themselves computed natively, and others with `generate`.

    A Qwen3, a Qwen3.5 and a DeepSeek-V3 are computed by transformers' modules, a Qwen3-MoE and the
    Gemma 3 natively.

    Returns:
        Medians by name, with the quartiles of each.
    """
    with tempfile.TemporaryDirectory() as name:
        llama, _ = write_pair(Path(name), turns.size, STRONG)
        qwen3 = write_qwen3(Path(name) / "qwen3", turns.size)
        figures: dict[str, object] = {}
        for batch in turns.step_batches:
            ratios = _step_ratios(llama, batch, turns)
            figures |= _spread(f"step_to_native_b{batch}", ratios)
        gemma3 = write_gemma3(Path(name) / "gemma3", turns.size)
        for batch in turns.answer_batches:
            ratios = _step_ratios(gemma3, batch, turns)
            figures |= _spread(f"gemma3_step_to_native_b{batch}", ratios)
        qwen3_moe = write_qwen3_moe(Path(name) / "qwen3_moe", turns.size)
        for model, folder, implementation in (
            ("qwen3", qwen3, "transformers"),
            ("qwen3_moe", qwen3_moe, "native"),
            ("gemma3", gemma3, "native"),
            ("qwen3_5", write_qwen3_5(Path(name) / "qwen3_5", turns.size), "transformers"),
            ("deepseek_v3", write_deepseek_v3(Path(name) / "deepseek", turns.size), "transformers"),
        ):
            for batch in turns.answer_batches:
                ratios, differing = _answer_ratios(folder, implementation, batch, turns)
                figures |= _spread(f"{model}_to_generate_b{batch}", ratios)
                figures[f"{model}_differing_tokens_b{batch}"] = differing
    return figures


def write_qwen3(folder: Path, size: Size) -> Path:
    """Write a Qwen3 with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**_sizes(size))).save_pretrained(folder)
    return folder


def write_qwen3_moe(folder: Path, size: Size) -> Path:
    """Write a Qwen3-MoE with random weights; an expert is as wide as Qwen3-30B-A3B's is to it."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    mixture: dict[str, Any] = {
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_OF_A_TOKEN,
        "moe_intermediate_size": 3 * size.hidden // 8,
        "norm_topk_prob": True,
    }
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**_sizes(size), **mixture)).save_pretrained(folder)
    return folder


def write_qwen3_5(folder: Path, size: Size) -> Path:
    """Write a Qwen3.5 with random weights: of four layers, three are recurrent."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    types = (["linear_attention"] * 3 + ["full_attention"]) * size.layers
    own: dict[str, Any] = {
        "layer_types": types[-size.layers :],  # the last one attends
        "linear_num_key_heads": size.heads,
        "linear_num_value_heads": size.heads,
        "linear_key_head_dim": size.head_dim,
        "linear_value_head_dim": size.head_dim,
    }
    Qwen3_5ForCausalLM(Qwen3_5TextConfig(**_sizes(size), **own)).save_pretrained(folder)
    return folder


def write_deepseek_v3(folder: Path, size: Size) -> Path:
    """Write a DeepSeek-V3 with random weights: latent attention, and experts but in one layer."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(0)
    own: dict[str, Any] = {
        "num_key_value_heads": size.heads,
        "head_dim": size.head_dim // 2,
        "q_lora_rank": size.hidden // 2,
        "kv_lora_rank": 2 * size.head_dim,
        "qk_nope_head_dim": size.head_dim,
        "qk_rope_head_dim": size.head_dim // 2,
        "v_head_dim": size.head_dim,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_OF_A_TOKEN,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 3 * size.hidden // 8,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
    }
    DeepseekV3ForCausalLM(DeepseekV3Config(**_sizes(size) | own)).save_pretrained(folder)
    return folder


def write_gemma3(folder: Path, size: Size) -> Path:
    """Write a Gemma 3 with random weights and windows in every other layer."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    types = ["sliding_attention", "full_attention"] * size.layers
    own: dict[str, Any] = {
        "sliding_window": WINDOW,
        "layer_types": types[: size.layers],
        "query_pre_attn_scalar": size.head_dim,
    }
    Gemma3ForCausalLM(Gemma3TextConfig(**_sizes(size), **own)).save_pretrained(folder)
    return folder


def _sizes(size: Size) -> dict[str, Any]:
    return {
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.key_heads,
        "head_dim": size.head_dim,
        "max_position_embeddings": size.context,
        "tie_word_embeddings": False,
    }


def make_engine(folder: Path, implementation: str, batch: int) -> EngineCore:
    """Build an engine without a draft, on as many threads as this process has."""
    document = {
        "model": {"path": str(folder), "dtype": "float32", "implementation": implementation},
        "scheduling": {"max_running_requests": batch, "chunked_prefill_tokens": 4096},
        "memory": {"prefix_cache": False, "kv_cache_bytes": CACHE_BYTES},
        "device": "cpu",
        "threads": torch.get_num_threads(),
    }
    return build_core(EngineBoot.model_validate(document))


def _step_ratios(folder: Path, batch: int, turns: Turns) -> list[float]:
    """CPU time of steps through transformers to that of native ones."""
    cores = [make_engine(folder, name, batch) for name in ("transformers", "native")]
    with ExitStack() as stack:
        for core in cores:
            stack.enter_context(decoding(core, batch, turns.prompt))
        steps = [core.step for core in cores]
        for _ in range(WARM_UP):
            in_turns(steps, 0)
        label = f"steps of {batch}"
        taken = [in_turns(steps, turn) for turn in tqdm(range(turns.steps), desc=label)]
    return [through / native for through, native in taken]


def _answer_ratios(
    folder: Path, implementation: str, batch: int, turns: Turns
) -> tuple[list[float], int]:
    """Tokens per CPU second to those of `generate`, and how many tokens differ."""
    generator = torch.Generator().manual_seed(batch)
    prompts = torch.randint(3, turns.size.vocab, (batch, turns.prompt), generator=generator)
    core, model = make_engine(folder, implementation, batch), _read(folder)
    answers: list[list[list[int]]] = [[], []]

    def serve() -> None:
        answers[0] = answer(core, prompts.tolist(), turns.answer)

    def generate() -> None:
        mask = torch.ones_like(prompts)
        ids = model.generate(
            prompts, attention_mask=mask, max_new_tokens=turns.answer, do_sample=False
        )
        answers[1] = ids[:, turns.prompt :].tolist()

    in_turns([serve, generate], 0)
    label = f"{folder.name}: answers of {batch}"
    taken = [in_turns([serve, generate], turn) for turn in tqdm(range(turns.answers), desc=label)]
    own, others = (torch.tensor(tokens) for tokens in answers)
    return [other / ours for ours, other in taken], int((own != others).sum())


def _read(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # an answer is as long as it was asked for
    model.generation_config.pad_token_id = 0
    return model.eval()


def answer(core: EngineCore, prompts: Prompts, tokens: int) -> list[list[int]]:
    """Answer all prompts together."""
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    for name, prompt in zip(answers, prompts, strict=True):
        params = SamplingParams(seed=0, max_tokens=tokens, temperature=0.0, ignore_eos=True)
        core.submit(Request(name, tuple(prompt), params))
    while core.has_work():
        for output in core.step():
            answers[output.request_id] += output.token_ids
    return list(answers.values())


def in_turns(calls: Sequence[Callable[[], object]], turn: int) -> list[float]:
    """Make every call once, in an order that changes; return CPU seconds in the order given."""
    taken = [0.0] * len(calls)
    for index in range(len(calls))[:: -1 if turn % 2 else 1]:
        began_s = time.process_time()
        calls[index]()
        taken[index] = time.process_time() - began_s
    return taken


def _spread(name: str, ratios: Sequence[float]) -> dict[str, object]:
    lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        name: round(median, 3),
        f"{name}_quartiles": [round(lower, 3), round(upper, 3)],
    }
