"""Names of the parsers that separate tool calls and reasoning from a model's text, as in vLLM."""

from typing import Literal

ToolFormat = Literal[
    "deepseek_v3",
    "deepseek_v31",
    "glm45",
    "hermes",
    "llama3_json",
    "mistral",
    "openai",
    "pythonic",
    "qwen3_coder",
]
"""`openai` is harmony, the format of gpt-oss."""

ReasoningFormat = Literal["deepseek_r1", "glm45", "mistral", "openai_gptoss", "qwen3"]
