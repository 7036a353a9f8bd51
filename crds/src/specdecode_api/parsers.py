"""Names of the parsers that separate tool calls and reasoning from a model's text, as in vLLM."""

from typing import Literal

ToolFormat = Literal[
    "cohere_command3",
    "cohere_command4",
    "deepseek_v3",
    "deepseek_v31",
    "gemma4",
    "glm45",
    "glm47",
    "hermes",
    "kimi_k2",
    "lfm2",
    "llama3_json",
    "minimax_m2",
    "mistral",
    "olmo3",
    "openai",
    "pythonic",
    "qwen3_coder",
    "seed_oss",
]
"""`openai` is harmony, the format of gpt-oss."""

ReasoningFormat = Literal[
    "cohere_command3",
    "cohere_command4",
    "deepseek_r1",
    "gemma4",
    "glm45",
    "kimi_k2",
    "minimax_m2",
    "mistral",
    "olmo3",
    "openai_gptoss",
    "qwen3",
    "seed_oss",
]
