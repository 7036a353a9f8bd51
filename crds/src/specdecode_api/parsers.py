"""Names of the parsers that separate tool calls and reasoning from a model's text, as in vLLM."""

from typing import Literal

ToolFormat = Literal[
    "apertus",
    "cohere_command3",
    "cohere_command4",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "gemma4",
    "glm45",
    "glm47",
    "granite",
    "hermes",
    "hunyuan_a13b",
    "hy_v3",
    "hy_v4",
    "kimi_k2",
    "lfm2",
    "llama3_json",
    "minimax_m2",
    "mistral",
    "olmo3",
    "openai",
    "phi4_mini_json",
    "pythonic",
    "qwen3_coder",
    "seed_oss",
]
"""`openai` is harmony, the format of gpt-oss."""

ReasoningFormat = Literal[
    "apertus",
    "cohere_command3",
    "cohere_command4",
    "deepseek_r1",
    "ernie45",
    "gemma4",
    "glm45",
    "granite",
    "hunyuan_a13b",
    "hy_v3",
    "kimi_k2",
    "minimax_m2",
    "mistral",
    "olmo3",
    "openai_gptoss",
    "qwen3",
    "seed_oss",
]
