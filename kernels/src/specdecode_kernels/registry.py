"""Every op that has a kernel: where its truth, its kernel, its test and its benchmark stand."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Op:
    """One op: dotted names of its reference and launchers, paths of its tests and benchmark."""

    name: str
    reference: str
    triton: str
    native: str | None  # what takes most of a round on a CPU has a kernel in C
    tests: str
    bench: str


def _op(name: str, reference: str, native: str | None = None) -> Op:
    return Op(
        name=name,
        reference=f"specdecode_kernels.reference.{reference}.{name}",
        triton=f"specdecode_kernels.triton.{name}.{name}",
        native=native and f"specdecode_kernels.native.{native}.{name}",
        tests=f"tests/kernels/test_{name}_triton.py",
        bench=f"bench/kernels/{name}.py",
    )


OPS: tuple[Op, ...] = (
    _op("rms_norm", "elementwise", "elementwise"),
    _op("add_rms_norm", "elementwise", "elementwise"),
    _op("apply_rope", "elementwise", "elementwise"),
    _op("silu_and_mul", "elementwise", "elementwise"),
    _op("select_nodes", "trees"),
    _op("link_nodes", "trees"),
    _op("walk_chain", "walks"),
    _op("walk_tree", "walks"),
    _op("take_path", "paths"),
    _op("move_kv", "paths"),
    _op("penalise", "penalties"),
    _op("choose", "choosing"),
    _op("store_kv", "pool", "pool"),
    _op("attend", "attention", "attention"),
    _op("merge_states", "merge_states"),
)
