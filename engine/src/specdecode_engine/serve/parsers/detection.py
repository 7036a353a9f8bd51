"""Finds the formats of a model's messages in its chat template."""


def detect_reasoning_format(template: str) -> str | None:
    """Return the name of the format of reasoning, as vLLM names it; None without reasoning."""
    if "<|channel|>" in template:
        return "openai_gptoss"
    if "[THINK]" in template:
        return "mistral"
    if "</think>" not in template and "<think>" not in template:
        return None
    if "[gMASK]" in template:
        return "glm45"
    return "qwen3" if "<|im_start|>" in template else "deepseek_r1"
