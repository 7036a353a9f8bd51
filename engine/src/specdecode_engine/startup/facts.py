"""What an engine runs on, for people to read: fields of /server_info."""

import torch

from specdecode_engine.graphs.plan import GraphReport
from specdecode_engine.model.implementations import implementation_of
from specdecode_engine.model.routed_experts import RoutedShape
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.startup.config import CUDA, OFF, EngineConfig
from specdecode_engine.startup.device import device_name
from specdecode_engine.startup.draft_methods.registry import draft_facts
from specdecode_engine.startup.models import LoadedModels
from specdecode_kernels import cpu
from specdecode_kernels.choice import DRAFT_FORWARDS, TARGET_FORWARDS


def gather_facts(
    config: EngineConfig,
    models: LoadedModels,
    limits: Limits,
    routed: RoutedShape | None,
    graphs: GraphReport,
) -> dict[str, object]:
    """Return the fields, after the engine is built."""
    fallback, kernels = config.boot.speculation.fallback, dict[str, object]()
    for name, choice in config.kernels.items():
        kernels[f"{name}_attention"] = choice.backend.attention
        kernels[f"{name}_attention_reason"] = choice.reason
        forwards = TARGET_FORWARDS if name == "target" else DRAFT_FORWARDS
        in_graphs = graphs.mode == CUDA and not graphs.failure
        by_forward = choice.attention_by_forward(forwards, in_graphs=in_graphs)
        kernels[f"{name}_attention_by_forward"] = by_forward
    return {
        "device": str(config.device),
        "device_name": device_name(config.device),
        "tensor_parallel_size": config.ranks.size,
        "model_implementation": implementation_of(config.target),
        **_skipped_tensors(models.target),
        **_quantizations(config),
        "model_quantization": config.boot.model.quantization,
        **draft_facts(config.boot, config.draft, config.target),
        "dtype": str(config.dtype).removeprefix("torch."),
        "kv_cache_dtype": str(config.kv_dtype).removeprefix("torch."),
        **kernels,
        **models.linears.facts(),
        **_cpu_kernels(config),
        "threads": torch.get_num_threads(),
        **({} if fallback is None else {"fallback": str(fallback)}),
        "num_steps_at_start": config.boot.speculation.num_steps,
        "max_draft_tokens": limits.max_draft_tokens,
        "kv_pages": limits.pages,
        "kv_window_pages": limits.window_pages,
        "kv_cache_bytes": limits.kv_bytes,
        **_states(config, limits),
        **({} if routed is None else {"routed_experts": routed.facts()}),
        **({} if models.adapters is None else {"adapters": models.adapters.facts}),
        "longest_sequence": limits.longest_sequence,
        "overlap": limits.lag_tokens > 0,
        "graphs": OFF if graphs.failure and not graphs.pairs else graphs.mode,
        "graphs_reason": graphs.failure or config.graph_mode.reason,
        "captured_pairs": graphs.pairs,
    }


def _states(config: EngineConfig, limits: Limits) -> dict[str, object]:
    """Return what is kept for the recurrent layers."""
    layers = config.target.delta_layers
    if layers is None:
        return {}
    return {
        "recurrent_layers": layers.count,
        "state_bytes_per_request": layers.state_bytes(config.dtype),
        "cached_states": limits.cached_states,
    }


def _quantizations(config: EngineConfig) -> dict[str, object]:
    """Return the formats in which weights are stored."""
    parts = (("quantization", config.target), ("draft_quantization", config.draft))
    found = {name: model and model.quantization for name, model in parts}
    return {name: one.description for name, one in found.items() if one}


def _skipped_tensors(target: LanguageModel) -> dict[str, object]:
    """Return how many tensors of other kinds of input the checkpoint has."""
    names = target.skipped_tensors
    return {"skipped_tensors": len(names)} if names else {}


def _cpu_kernels(config: EngineConfig) -> dict[str, object]:
    """Return which C kernels run and how they are tuned, or why none do, for a type of theirs."""
    if config.device.type != "cpu":
        return {}
    numerics: dict[str, object] = {"cpu_numerics": cpu.numerics(config.dtype)}
    if config.dtype not in cpu.TYPES:
        return numerics
    why = cpu.unsupported_reason(config.dtype)
    if why is not None:
        return numerics | {"cpu_kernels_missing": why}
    sum_order = config.kernels["target"].backend.sum_order
    sums: dict[str, object] = {"sum_order": sum_order}
    if sum_order == "blocks32":
        sums |= cpu.products_facts(config.dtype)
    return numerics | sums | {"cpu_kernel_tuning": cpu.tuning_facts(config.dtype)}
