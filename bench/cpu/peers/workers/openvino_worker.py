"""OpenVINO GenAI: greedy, with a draft, and continuous batching, from a GGUF that is ours.

A draft cannot be read from a GGUF, so both models are read once, saved in OpenVINO's own format,
compressed by NNCF where int8 is asked for, and opened from there.
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import openvino as ov
import openvino_genai as genai

from bench.cpu.peers.answering import Ask, Setup, Told, Way, answer_questions

_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
_CACHE_GIB = 1


def load(setup: Setup) -> tuple[Mapping[str, Way], dict[str, str]]:
    """Convert both models; pipelines are built when first asked for."""
    for gguf in (setup.target, setup.draft):
        model = Path(gguf).with_name("openvino_model.xml")
        if not model.exists():
            genai.LLMPipeline(gguf, "CPU", enable_save_ov_model=True)
            if setup.quantization == "int8":
                _compress(model)
    pipelines = Pipelines(setup)
    ways: dict[str, Way] = {
        "plain": pipelines.plain,
        "speculative": pipelines.speculative,
        "batch": pipelines.batch,
        "mixed": pipelines.batch,
    }
    return ways, {name: version(name) for name in ("openvino", "openvino-genai", "nncf")}


def _compress(path: Path) -> None:
    """Store all matrices as int8 with one scale per output, the embedding and the head too."""
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})  # the file is overwritten
    symmetric = nncf.CompressWeightsMode.INT8_SYM
    model = nncf.compress_weights(core.read_model(path), mode=symmetric)
    ov.save_model(model, path, compress_to_fp16=False)


class Pipelines:
    """One pipeline per way; tokens go in and come out, no text."""

    def __init__(self, setup: Setup) -> None:
        self._target = Path(setup.target).parent
        self._draft = Path(setup.draft).parent
        precision = _PRECISIONS[setup.dtype]
        self._properties: dict[str, int | str] = {
            "INFERENCE_NUM_THREADS": 1,
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
        }
        if setup.activation_group:
            self._properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = int(setup.activation_group)
        self._built: dict[str, Any] = {}

    def plain(self, ask: Ask) -> Told:
        """One prompt."""
        if "plain" not in self._built:
            self._built["plain"] = genai.LLMPipeline(self._target, "CPU", **self._properties)
        return self._one(self._built["plain"], ask)

    def speculative(self, ask: Ask) -> Told:
        """One prompt, with the draft."""
        if "speculative" not in self._built:
            draft = genai.draft_model(
                self._draft, "CPU", scheduler_config=_scheduling(), **self._properties
            )
            self._built["speculative"] = genai.LLMPipeline(
                self._target,
                "CPU",
                scheduler_config=_scheduling(),
                draft_model=draft,
                **self._properties,
            )
        return self._one(self._built["speculative"], ask)

    def batch(self, ask: Ask) -> Told:
        """All prompts at once, batched continuously."""
        if "batch" not in self._built:
            self._built["batch"] = genai.ContinuousBatchingPipeline(
                self._target, _scheduling(), "CPU", self._properties
            )
        prompts = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in ask.prompts]
        configs = [_greedy(tokens, 0) for tokens in ask.tokens]
        with ask.timed():
            results = self._built["batch"].generate(prompts, configs)
        return Told([list(result.m_generation_ids[0]) for result in results])

    def _one(self, pipeline: Any, ask: Ask) -> Told:
        ids = np.array(ask.prompts, dtype=np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        config = _greedy(ask.tokens[0], ask.depth)
        with ask.timed():
            result = pipeline.generate(inputs, config)
        return Told([list(result.tokens[0])])


def _scheduling() -> Any:
    config = genai.SchedulerConfig()
    config.cache_size = _CACHE_GIB
    config.enable_prefix_caching = False
    config.max_num_batched_tokens = 4096
    return config


def _greedy(tokens: int, depth: int) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = False
    if depth:
        config.num_assistant_tokens = depth
    return config


if __name__ == "__main__":
    answer_questions(load)
