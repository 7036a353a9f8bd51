"""Targets, and how figures are shown next to them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a figure is held against."""

    figure: str
    text: str
    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, value: float | None) -> bool | None:
        """Return None where nothing was measured."""
        if value is None:
            return None
        if self.at_most is not None:
            return value <= self.at_most
        return self.at_least is None or value >= self.at_least

    @property
    def bound(self) -> str:
        """The bound in words."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return "" if self.at_least is None else f"≥ {self.at_least:g}"


TARGETS = (
    Target("plain_b1_vs_transformers", "plain, batch 1, to transformers generate", 2.0),
    Target("plain_b1_vs_openvino", "plain, batch 1, to OpenVINO GenAI", 0.9),
    Target("plain_b1_of_limit", "plain, batch 1, share of the memory's limit", 0.5),
    Target("verify8_over_1", "target pass over 8 rows to 1 row", at_most=1.4),
    Target("spec_b1_vs_plain", "strong draft, batch 1, to own plain", 2.0),
    Target("spec_b1_vs_transformers_assisted", "the same to transformers' assisted", 1.8),
    Target("spec_b1_vs_openvino", "the same to OpenVINO's speculative", 1.0),
    Target("b8_vs_transformers", "batch 8 to transformers, padded batch", 1.5),
    Target("b8_vs_openvino", "batch 8 to OpenVINO's continuous batching", 0.8),
    Target("mixed64_vs_generate_batch", "64 mixed requests to generate_batch", 3.0),
    Target("mixed64_vs_openvino", "64 mixed requests to OpenVINO's"),
    Target("mixed64_of_static", "64 mixed, 8 at a time, to groups of 8 equal ones", 0.9),
    Target(
        "implementations step_to_native_b1", "a step through transformers to native", at_most=1.35
    ),
    Target("implementations step_to_native_b8", "the same, batch 8", at_most=1.25),
    Target("implementations step_to_native_b32", "the same, batch 32", at_most=1.15),
    Target("implementations qwen3_to_generate_b1", "Qwen3 through transformers to `generate`", 1.0),
    Target("implementations qwen3_to_generate_b8", "the same, batch 8", 1.0),
    Target("implementations qwen3_moe_to_generate_b1", "Qwen3-MoE natively to `generate`", 1.5),
    Target("implementations qwen3_moe_to_generate_b8", "the same, batch 8", 1.5),
    Target("implementations gemma3_step_to_native_b1", "Gemma 3: a step through transformers"),
    Target("implementations gemma3_step_to_native_b8", "the same, batch 8"),
    Target("implementations gemma3_to_generate_b1", "Gemma 3 natively to `generate`"),
    Target("implementations gemma3_to_generate_b8", "the same, batch 8"),
    Target("implementations qwen3_5_to_generate_b1", "Qwen3.5 (recurrent) to `generate`"),
    Target("implementations qwen3_5_to_generate_b8", "the same, batch 8"),
    Target("implementations deepseek_v3_to_generate_b1", "DeepSeek-V3 (latent) to `generate`"),
    Target("implementations deepseek_v3_to_generate_b8", "the same, batch 8"),
    *(
        Target(f"linear{rows}_of_limit {dtype}", f"linear layers, {rows} rows, {dtype}", least)
        for rows, least in ((1, 0.9), (8, 0.8), (64, 0.8))
        for dtype in ("float32", "bfloat16")
    ),
    Target("step_b1_of_read float32", "decode step, batch 1, of reading the weights", 0.8),
    Target("step_b1_of_read bfloat16", "the same, bfloat16", 0.7),
    Target("step_b8_of_read float32", "decode step, batch 8, of reading the weights", 0.65),
    Target("step_b8_of_read bfloat16", "the same, bfloat16", 0.65),
    Target("int8_vs_bf16", "speed of a decode step, batch 1, int8 to bfloat16", 1.6),
    Target("int4_vs_bf16", "the same, int4", 2.4),
    Target("float8-128_vs_w8a16", "the same, float8 to int8 of compressed-tensors", 0.92),
    Target("mxfp4_vs_w4a16", "the same, MXFP4 to int4 of compressed-tensors", 0.92),
    Target("nvfp4_vs_w4a16", "the same, NVFP4", 0.92),
    Target("float32_vs_llamacpp", "plain, batch 1, float32, to llama.cpp"),
    Target("int8_vs_llamacpp", "the same, int8, to its Q8_0", 0.9),
    Target("int4_vs_llamacpp", "the same, int4, to its Q4_0", 0.85),
    Target("float32_decode_vs_llamacpp", "the same without the prompt, float32"),
    Target("int8_decode_vs_llamacpp", "the same, int8"),
    Target("int4_decode_vs_llamacpp", "the same, int4"),
    Target("float32_spec_vs_llamacpp", "strong draft, batch 1, float32, to llama.cpp"),
    Target("int8_spec_vs_llamacpp", "the same, int8, to its Q8_0"),
    Target("int4_spec_vs_llamacpp", "the same, int4, to its Q4_0"),
    Target("float32_vs_openvino", "plain, batch 1, float32, to OpenVINO, the model of llama.cpp"),
    Target("int8_vs_openvino", "the same, int8", 0.9),
    Target("int8_vs_openvino_groups_of_128", "the same, its activations in groups of 128"),
    Target("int8_vs_openvino_weight_only", "the same, its activations in float32"),
    Target("float32_spec_vs_openvino", "strong draft, batch 1, float32, to OpenVINO"),
    Target("int8_spec_vs_openvino", "the same, int8"),
    Target("int8_spec_vs_openvino_groups_of_128", "the same, its activations in groups of 128"),
    Target("int8_spec_vs_openvino_weight_only", "the same, its activations in float32"),
    Target("prefill_of_flops 512", "prefill of 512 tokens, of its multiply-adds", 0.7),
    Target("prefill_of_flops 2048", "the same, 2,048 tokens", 0.7),
    Target("calls_per_step", "calls of Python functions in a step, batch 1", at_most=250),
    Target("prefix_match_us", "prefix match, 4096 tokens, pages of 16, µs", at_most=150),
    Target("scheduler_us 1", "host part of a step, batch 1, µs", at_most=50),
    Target("scheduler_us 16", "the same, batch 16", at_most=100),
    Target("scheduler_us 64", "the same, batch 64", at_most=250),
    Target("scheduler_us 256", "the same, batch 256", at_most=800),
)
_WORDS = {True: "met", False: "missed", None: "not measured"}


def table_rows(figures: Mapping[str, float | None]) -> list[tuple[str, str, str, str]]:
    """Rows of text: what, measured, target, whether it is met."""
    rows = []
    for target in TARGETS:
        if target.figure not in figures:
            continue
        value = figures[target.figure]
        shown = "–" if value is None else f"{value:.4g}"
        verdict = _WORDS[target.is_met(value)] if target.bound else ""
        rows.append((target.text, shown, target.bound, verdict))
    return rows


def flatten(figures: Mapping[str, object]) -> dict[str, float | None]:
    """Plain numbers by name; those of a nested object as `name key`."""
    flat: dict[str, float | None] = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            flat |= {f"{name} {key}": one for key, one in value.items()}
        elif value is None or isinstance(value, int | float):
            flat[name] = value
    return flat
