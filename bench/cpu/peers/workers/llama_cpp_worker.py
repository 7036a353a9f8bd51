"""llama.cpp through the C interface of its libraries: greedy, and with a draft.

It quantizes the file of float32 weights itself, and computes with the kernels that it chooses for
this processor. Its own loop of speculation is C++ whose headers the package lacks, so the loop
here is ours, as in llama.cpp's examples: draft greedily, verify in one batch.
"""

import ctypes
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.cpu.peers.answering import Ask, Setup, Told, Way, answer_questions

_CONTEXT = 512  # tokens
_FILE_TYPES = {"F32": 0, "Q8_0": 7, "Q4_0": 2}
_NO_MEMORY_MAP = 0
_DISABLED = 0
_FLOAT32 = 0
_P, _I, _U, _F, _B = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_float, ctypes.c_bool


def _fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names]


class ModelParams(ctypes.Structure):
    """`llama_model_params` of `bench.cpu.peers.llama_cpp.VERSION`, as are the others."""

    _fields_ = [
        *_fields(_P, "devices", "tensor_buft_overrides"),
        *_fields(_I, "n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu"),
        *_fields(_P, "tensor_split", "progress", "progress_data", "kv_overrides"),
        *_fields(_B, "vocab_only", "check_tensors", "use_extra_bufts"),
        *_fields(_B, "no_host", "no_alloc", "load_mtp"),
    ]


class ContextParams(ctypes.Structure):
    """`llama_context_params`."""

    _fields_ = [
        *_fields(_U, "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq"),
        *_fields(_U, "n_outputs_max", "n_outputs_max_per_seq"),
        *_fields(_I, "n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type"),
        *_fields(_I, "pooling_type", "attention_type", "flash_attn_type"),
        *_fields(_F, "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor"),
        *_fields(_F, "yarn_beta_fast", "yarn_beta_slow"),
        ("yarn_orig_ctx", _U),
        ("defrag_thold", _F),
        *_fields(_P, "cb_eval", "cb_eval_user_data"),
        *_fields(_I, "type_k", "type_v"),
        *_fields(_P, "abort_callback", "abort_callback_data"),
        *_fields(_B, "embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full"),
        ("kv_unified", _B),
        ("samplers", _P),
        ("n_samplers", ctypes.c_size_t),
        ("ctx_other", _P),
    ]


class QuantizeParams(ctypes.Structure):
    """`llama_model_quantize_params`."""

    _fields_ = [
        *_fields(_I, "nthread", "ftype", "output_tensor_type", "token_embedding_type"),
        *_fields(_B, "allow_requantize", "quantize_output_tensor", "only_copy", "pure"),
        *_fields(_B, "keep_split", "dry_run"),
        *_fields(_P, "imatrix", "kv_overrides", "tt_overrides", "prune_layers"),
        ("max_buf_size", ctypes.c_size_t),
    ]


class Batch(ctypes.Structure):
    """`llama_batch`; positions that are null follow those in the cache."""

    _fields_ = [
        ("n_tokens", _I),
        *_fields(_P, "token", "embd", "pos", "n_seq_id", "seq_id", "logits"),
    ]


class Library:
    """The functions that are used here."""

    def __init__(self, folder: Path) -> None:
        (llama,) = folder.glob("libllama.v*.so")
        (ggml,) = folder.glob("libggml.v*.so")
        self._llama = ctypes.CDLL(str(llama))
        load = ctypes.CDLL(str(ggml)).ggml_backend_load_all_from_path
        load.argtypes = [ctypes.c_char_p]
        load(str(folder).encode())
        text = ctypes.c_char_p
        self.model_params = self._function("llama_model_default_params", ModelParams)
        self.context_params = self._function("llama_context_default_params", ContextParams)
        self.quantize_params = self._function("llama_model_quantize_default_params", QuantizeParams)
        self.quantize = self._function("llama_model_quantize", _U, text, text, _P)
        self.load_model = self._function("llama_model_load_from_file", _P, text, ModelParams)
        self.new_context = self._function("llama_init_from_model", _P, _P, ContextParams)
        self.memory = self._function("llama_get_memory", _P, _P)
        self.remove = self._function("llama_memory_seq_rm", _B, _P, _I, _I, _I)
        self.decode = self._function("llama_decode", _I, _P, Batch)
        self.greedy = self._function("llama_sampler_init_greedy", _P)
        self.sample = self._function("llama_sampler_sample", _I, _P, _P, _I)
        self.version = self._function("llama_version", text)

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        function = self._llama[name]
        function.restype, function.argtypes = result, arguments
        return function


class GreedyText:
    """A model with one sequence of tokens in its cache, on one thread."""

    def __init__(self, library: Library, gguf: Path, dtype: str) -> None:
        self._library = library
        params = library.model_params()
        params.load_mode = _NO_MEMORY_MAP
        model = library.load_model(str(gguf).encode(), params)
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {gguf.name}")
        context = library.context_params()
        context.n_ctx = _CONTEXT
        context.n_threads = context.n_threads_batch = 1
        if dtype == "F32":  # its default, a cache of float16, would change tokens
            context.type_k = context.type_v = _FLOAT32
            context.flash_attn_type = _DISABLED
        self._context = library.new_context(model, context)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context for {gguf.name}")
        self._memory = library.memory(self._context)
        self._sampler = library.greedy()
        self.length = 0

    def truncate(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        self._library.remove(self._memory, 0, length, -1)
        self.length = length

    def forward(self, tokens: Sequence[int], outputs: int = 1) -> list[int]:
        """Append tokens; return the likeliest next ones after the last `outputs` of them."""
        count = len(tokens)
        ids = (ctypes.c_int32 * count)(*tokens)
        logits = (ctypes.c_int8 * count)(*[n >= count - outputs for n in range(count)])
        batch = Batch(count, token=ctypes.addressof(ids), logits=ctypes.addressof(logits))
        if self._library.decode(self._context, batch):
            raise RuntimeError(f"llama.cpp cannot decode {count} tokens after {self.length}")
        self.length += count
        places = range(count - outputs, count)
        return [self._library.sample(self._sampler, self._context, place) for place in places]


class Answers:
    """A target and its draft, both of one type."""

    def __init__(self, library: Library, setup: Setup) -> None:
        self._target, self._draft = (
            GreedyText(library, quantized(library, Path(gguf), setup.dtype), setup.dtype)
            for gguf in (setup.target, setup.draft)
        )

    def plain(self, ask: Ask) -> Told:
        """One prompt; report the time of decoding from the first token."""
        (prompt,), (count,) = ask.prompts, ask.tokens
        self._target.truncate(0)
        with ask.timed():
            answer = self._target.forward(prompt)
            began_s = time.process_time()
            while len(answer) < count:
                answer += self._target.forward(answer[-1:])
            decode_s = time.process_time() - began_s
        return Told([answer], {"decode_s": decode_s, "decode_tokens": count - 1})

    def speculative(self, ask: Ask) -> Told:
        """One prompt; the draft proposes `ask.depth` tokens at a time."""
        (prompt,), (count,) = ask.prompts, ask.tokens
        self._target.truncate(0)
        self._draft.truncate(0)
        with ask.timed():
            text = [*prompt, *self._target.forward(prompt)]
            end = len(prompt) + count
            while len(text) < end:
                text += self._step(text, min(ask.depth, end - len(text) - 1))
        return Told([text[len(prompt) :]])

    def _step(self, text: list[int], depth: int) -> list[int]:
        """Return the accepted tokens and the one after them."""
        drafted: list[int] = []
        while len(drafted) < depth:
            drafted += self._draft.forward([*text, *drafted][self._draft.length :])
        chosen = self._target.forward([text[-1], *drafted], depth + 1)
        accepted = next((n for n in range(depth) if drafted[n] != chosen[n]), depth)
        self._target.truncate(len(text) + accepted)
        self._draft.truncate(min(self._draft.length, len(text) + accepted))
        return chosen[: accepted + 1]


def quantized(library: Library, gguf: Path, dtype: str) -> Path:
    """Return a file of this type next to the one of float32."""
    if dtype == "F32":
        return gguf
    path = gguf.with_name(f"{gguf.stem}-{dtype}.gguf")
    params = library.quantize_params()
    params.nthread, params.ftype = 1, _FILE_TYPES[dtype]
    if library.quantize(str(gguf).encode(), str(path).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp cannot quantize {gguf.name} to {dtype}")
    return path


def load(setup: Setup) -> tuple[Mapping[str, Way], dict[str, str]]:
    """Quantize both models and load them."""
    library = Library(Path(setup.libraries))
    answers = Answers(library, setup)
    ways: dict[str, Way] = {"plain": answers.plain, "speculative": answers.speculative}
    return ways, {"llama.cpp": library.version().decode(), "llama.cpp kernels": _kernels()}


def _kernels() -> str:
    """Return the name of the library of kernels that llama.cpp chose for this processor."""
    mapped = Path("/proc/self/maps").read_text().split()
    return next(Path(name).stem for name in mapped if "/libggml-cpu-" in name)


if __name__ == "__main__":
    answer_questions(load)
