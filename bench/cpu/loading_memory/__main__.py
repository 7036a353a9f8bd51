"""Measures the host memory that loading models of more than 500 MB takes; the last line is JSON.

A dense model and a mixture, in shards, as a pickle, in float8 and in float4, by both
implementations, with plain and with packed weights. Exits with 1 if a peak is above 1.1 times the
model (1.15 in float4), or if packed weights that are kept as stored take more than 1.03 of their
files or differ by more than 2 % from what `specdecode-engine check` reports.

transformers fuses the experts of one layer at a time, in memory next to the model; the layers here
are a small part each.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.cpu.loading_memory.checkpoints import FORMATS, write_shards
from bench.cpu.loading_memory.measure import WAYS, measured

MOST, MOST_OF_FLOAT4 = 1.1, 1.15
MOST_OF_FILES, MOST_OFF_PLAN = 1.03, 0.02
FLOAT4 = ("mxfp4", "nvfp4")
HEADS = {"num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 128}
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": True}
SIZES: dict[str, dict[str, object]] = {
    "qwen3": {
        **HEADS,
        "vocab_size": 32000,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 20,
    },
    "qwen3_moe": {
        **HEADS,
        **EXPERTS,
        "vocab_size": 32000,
        "hidden_size": 1024,
        "moe_intermediate_size": 512,
        "num_hidden_layers": 36,
    },
}
TINY = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 1, "moe_intermediate_size": 64}


def main() -> int:
    results = []
    for model_type, sizes in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            tiny, shards = Path(folder, "tiny"), Path(folder, "shards")
            write_shards(tiny, model_type, {**sizes, **TINY}, "1GB")
            write_shards(shards, model_type, sizes, "200MB")
            folders = [shards]
            for name, write in FORMATS.items():
                write(shards, Path(folder, name))
                folders.append(Path(folder, name))
            for one in measured(tiny, WAYS, folders):
                row = {
                    "model_type": model_type,
                    "format": one["format"],
                    "way": one["way"],
                    "model_mb": round(one["model"] / 1e6),
                    "ratio": round(one["peak"] / one["model"], 3),
                    "to_files": round(one["model"] / one["files"], 3),
                    "to_plan": round(one["model"] / one["plan"], 3),
                }
                results.append(row)
                print(*row.values(), flush=True)
    print(json.dumps({"most": MOST, "results": results}))
    return int(any(map(_is_too_much, results)))


def _is_too_much(row: Mapping[str, Any]) -> bool:
    """Whether a row exceeds its limits; see above."""
    if row["ratio"] > (MOST_OF_FLOAT4 if row["format"] in FLOAT4 else MOST):
        return True
    is_kept = row["format"] in ("float8", *FLOAT4) and row["way"] == "native+packed"
    return is_kept and (row["to_files"] > MOST_OF_FILES or abs(row["to_plan"] - 1) > MOST_OFF_PLAN)


if __name__ == "__main__":
    sys.exit(main())
