"""The sections of a run, in order; each yields its rows as it measures them."""

from collections.abc import Callable, Iterator
from functools import partial

from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.runner import Section
from bench.gpu.sections import (
    attention,
    block_draft,
    capture,
    decode,
    envelope,
    floors,
    graphs,
    latents,
    launches,
    lossless,
    mixture,
    overlap,
    parity,
    peers,
    small_kernels,
    steps,
    trace,
    verify,
    waits,
)


def _ops(names: tuple[str, ...]) -> Callable[[Context], Iterator[Row]]:
    return partial(small_kernels.measure, ops=names)


SECTIONS: tuple[Section, ...] = (
    Section("waits", "Backends, and waits in steady steps", waits.measure, 180, least_s=30),
    Section("floors", "What the machine allows", floors.measure, budget_s=20, least_s=3),
    Section("parity", "Kernels equal their references", parity.measure, budget_s=60, least_s=10),
    Section("lossless", "Speculation changes no token", lossless.measure, budget_s=35, least_s=10),
    Section(
        "capture", "Steps by CUDA graph equal eager ones", capture.measure, budget_s=45, least_s=10
    ),
    Section("decode", "G1 decoding against the memory's rate", decode.measure, 90, least_s=10),
    Section("graphs", "G6 capture and swap", graphs.measure, budget_s=20, least_s=5),
    Section("steps", "G2 speculative steps against their floor", steps.measure, 45, least_s=10),
    Section("trace", "What a step consists of", trace.measure, budget_s=30, least_s=10),
    Section("attention", "G3, G4 attention", attention.measure, budget_s=60, least_s=15),
    Section("small", "G5 small kernels", small_kernels.measure, budget_s=40, least_s=10),
    Section("launches", "Launches of small kernels", launches.measure, budget_s=30, least_s=10),
    Section("sampling", "G5 sampling and routers", _ops(small_kernels.SAMPLING), 30, least_s=10),
    Section("envelope", "G8 adaptive against every fixed depth", envelope.measure, 90, least_s=30),
    Section("verify", "G9 verifying less than is drafted", verify.measure, 60, least_s=30),
    Section("overlap", "G7 overlap and idle time", overlap.measure, budget_s=40, least_s=20),
    Section("flashinfer", "Peer: FlashInfer's attention", peers.measure_flashinfer, 90, least_s=15),
    Section("recurrent", "Recurrent kernels", _ops(small_kernels.RECURRENT), 30, least_s=10),
    Section("latents", "Attention over latents", latents.measure, budget_s=30, least_s=10),
    Section("experts", "Experts, weights of integers", _ops(small_kernels.EXPERTS), 40, least_s=15),
    Section("mixture", "A mixture of experts", mixture.measure, budget_s=100, least_s=40),
    Section("block", "DFlash next to EAGLE-3", block_draft.measure, budget_s=100, least_s=40),
    Section("transformers", "Peer: transformers", peers.measure_transformers, 60, least_s=25),
    Section("compiled", "Peer: transformers, compiled", peers.measure_compiled, 90, least_s=45),
)
