"""What is left out of each peer, and which machine code of it a run on an H100 or H200 needs."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Wanted = Callable[[Sequence[str]], bool]
ATTENTION = re.compile(
    r"128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, "
    r"\w+, \w+, (?P<softcap>\w+), \w+, \w+, \w+, (?P<second_query>\w+),"
)
OTHER_ATTENTION = ("FlashAttnFwdSm80", "flash_fwd_kernel", "fwd_sparse")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a peer is packed.

    Args:
        left_out: files and folders that the run does not import.
        cut: shared objects, by path, of which only machine code for compute capability 9.0 stays,
            and of that only images whose demangled kernel names are wanted.
        stripped: shared objects without debug symbols afterwards.
    """

    name: str
    left_out: tuple[str, ...]
    cut: dict[str, Wanted]
    stripped: tuple[str, ...] = ()


def every_kernel(names: Sequence[str]) -> bool:
    """Want all."""
    return True


def attention_of_the_run(names: Sequence[str]) -> bool:
    """Want FlashAttention 3 in bfloat16 with head dim 128, without softcap and second query."""
    text = "\n".join(names)
    if any(other in text for other in OTHER_ATTENTION):
        return False
    if "FlashAttnFwdSm90" not in text:
        return True
    found = [*ATTENTION.finditer(text)]
    flags = [one[name] for one in found for name in ("softcap", "second_query")]
    return bool(found) and all(flag == "false" for flag in flags)


_COMMON_LEFT_OUT = (
    "bin",
    "pycountry/locales",
    "mistral_common/data",
    "dill/tests",
)
RECIPES = (
    Recipe(
        "vllm",
        (
            *_COMMON_LEFT_OUT,
            "vllm/vllm-rs",
            "vllm/_moe_C_stable_libtorch.abi3.so",
            "vllm/_qutlass_C.abi3.so",
            "vllm/_flashmla_C.abi3.so",
            "vllm/_flashmla_extension_C.abi3.so",
            "vllm/_rust_tool_parser.abi3.so",
            "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
            "vllm/third_party/deep_gemm",
            "vllm/third_party/fmha_sm100",
            "vllm/entrypoints/serve/instrumentator/static",
        ),
        {
            "vllm/_C_stable_libtorch.abi3.so": every_kernel,
            "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": attention_of_the_run,
        },
        ("xgrammar/libxgrammar_bindings.so",),
    ),
    Recipe(
        "sglang",
        (
            *_COMMON_LEFT_OUT,
            "sgl_kernel/sm100",
            "sgl_kernel/infllm_ops.cpython-310-x86_64-linux-gnu.so",
            "sgl_kernel/flashmla_ops.abi3.so",
            "sglang/multimodal_gen",
            "sglang/test",
            "sglang/eval",
            "sglang/srt/server/_core.cpython-312-x86_64-linux-gnu.so",
            "sglang/srt/grpc/_core.cpython-312-x86_64-linux-gnu.so",
            "sglang/srt/multimodal/_core.cpython-312-x86_64-linux-gnu.so",
            "triton_kernels",
            "flashinfer/data",
            "zstandard/_cffi.cpython-312-x86_64-linux-gnu.so",
            "joblib/test",
        ),
        {
            "sgl_kernel/flash_ops.abi3.so": attention_of_the_run,
            "sgl_kernel/sm90/common_ops.abi3.so": every_kernel,
            "sgl_kernel/spatial_ops.abi3.so": every_kernel,
        },
        (
            "xgrammar/libxgrammar_bindings.so",
            "zstandard/backend_c.cpython-312-x86_64-linux-gnu.so",
        ),
    ),
)
