"""`make bench-draft-exchange`: step times while a draft of the size of a real head is exchanged.

The target is that of examples/models, next to a random STANDALONE draft that is much larger, so
that the copy of a piece is long in comparison with a step. The last line is JSON.
"""

import argparse
import json
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from checks.detection.served import EXAMPLES, example_requests, served_boot
from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core

STREAMS, MAX_TOKENS = 4, 900
STEPS = 60  # before the exchange
HIDDEN, LAYERS = 1024, 4

Piece = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        drafts = [_write_draft(Path(folder) / str(seed), seed) for seed in (1, 2)]
        core = build_core(_boot(drafts[0]))
        runs = [_run(core, drafts[(number + 1) % 2]) for number in range(repeats)]
    result = {name: _median(run[name] for run in runs) for name in runs[0]}
    print(json.dumps({"repeats": repeats, "streams": STREAMS, **result}))


def _write_draft(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    target = json.loads((EXAMPLES / "target" / "config.json").read_text())
    config = LlamaConfig(
        vocab_size=target["vocab_size"],
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _boot(draft: Path) -> EngineBoot:
    """Draft steps are possible, and none is drafted: the steps are as short as they can be."""
    speculation = {
        "algorithm": "STANDALONE",
        "draft_path": str(draft),
        "num_steps": 0,
        "policy": "static",
        "table": {"1": {"candidate_steps": [0, 1]}},
    }
    scheduling = {"max_running_requests": STREAMS}
    return EngineBoot.model_validate(
        {**served_boot(), "speculation": speculation, "scheduling": scheduling}
    )


def _run(core: EngineCore, folder: Path) -> dict[str, float]:
    """Exchange the draft while streams decode; return the gaps between their tokens."""
    for request in example_requests(STREAMS, max_tokens=MAX_TOKENS):
        core.submit(request)
    for _ in range(STEPS // 2):
        core.step()
    alone = [_step(core) for _ in range(STEPS)]
    pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
    server = threading.Thread(target=_serve, args=(core, folder, pieces))
    started_s = time.perf_counter()
    server.start()
    reading, copying = list[float](), list[float]()
    while server.is_alive():
        piece = None if pieces.empty() else pieces.get()
        gap = _step(core, piece)
        (copying if piece else reading).append(gap)
    for sequence in list(core.scheduler.running):
        core.abort(sequence.request.request_id)
    usual = statistics.median(alone)
    return {
        "step_ms": usual * 1e3,
        "exchange_seconds": time.perf_counter() - started_s,
        "pieces": len(copying),
        "longest_gap_alone_in_steps": max(alone) / usual,
        "median_gap_without_piece_in_steps": statistics.median(reading) / usual,
        "longest_gap_without_piece_in_steps": max(reading) / usual,
        "median_gap_with_piece_in_steps": statistics.median(copying) / usual,
        "longest_gap_with_piece_in_steps": max(copying) / usual,
        "median_gap_with_piece_ms": statistics.median(copying) * 1e3,
    }


def _serve(core: EngineCore, folder: Path, pieces: "queue.SimpleQueue[Piece]") -> None:
    """Do what the server does: read the draft, then hand over each piece after the one before."""
    assert core.stage_draft is not None
    for piece in core.stage_draft(folder):
        done = threading.Event()
        pieces.put(partial(_run_piece, piece, done))
        done.wait()


def _run_piece(piece: Piece, done: threading.Event) -> None:
    piece()
    done.set()


def _step(core: EngineCore, piece: Piece | None = None) -> float:
    """Return the seconds of a step, and of the piece before it."""
    started_s = time.perf_counter()
    if piece is not None:
        piece()
    outputs = core.step()
    assert len(outputs) == STREAMS, "every stream gets a token in every step"
    return time.perf_counter() - started_s


def _median(values: Iterator[float]) -> float:
    return round(statistics.median(values), 3)


if __name__ == "__main__":
    main()
