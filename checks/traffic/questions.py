"""What is asked: few prompts in every form, so that each answer can be compared."""

from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

from demo.chat import QUESTION

PROMPTS = (
    "Count from one to twenty.",
    "The first day of the week",
    QUESTION,
    "Once upon a time there was",
)
TOKENS = 40
STRUCTURED_TOKENS = 96
LONG_TOKENS = 400

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "day": {"enum": ["Monday", "Tuesday", "Sunday"]},
        "hours": {"type": "integer", "minimum": 0, "maximum": 24},
    },
    "required": ["day", "hours"],
    "additionalProperties": False,
}
TOOL = {"name": "open_shop", "parameters": SCHEMA, "strict": True}


class Form(Enum):
    """The form of a request, and of its answer."""

    TEXT = auto()
    CHAT = auto()
    TOOL_CALL = auto()
    JSON = auto()
    REASONING = auto()
    LONG_TEXT = auto()


_FIELDS = MappingProxyType(
    {
        Form.TEXT: {"max_tokens": TOKENS, "extra_body": {"ignore_eos": True}},
        Form.CHAT: {"max_tokens": TOKENS, "extra_body": {"ignore_eos": True}},
        Form.TOOL_CALL: {
            "max_tokens": STRUCTURED_TOKENS,
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
        Form.JSON: {
            "max_tokens": STRUCTURED_TOKENS,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "shop", "schema": SCHEMA, "strict": True},
            },
        },
        Form.REASONING: {
            "max_tokens": TOKENS,
            "extra_body": {
                "ignore_eos": True,
                "add_generation_prompt": False,
                "continue_final_message": True,
            },
        },
        Form.LONG_TEXT: {"max_tokens": LONG_TOKENS, "extra_body": {"ignore_eos": True}},
    }
)
_REASONING_START = {"role": "assistant", "content": "<think>\nFirst"}


@dataclass(frozen=True, slots=True)
class Question:
    """A request whose answer is a function of its fields alone."""

    prompt: str
    form: Form
    temperature: float
    seed: int

    @property
    def is_chat(self) -> bool:
        return self.form not in (Form.TEXT, Form.LONG_TEXT)

    def body(self, model: str) -> dict[str, object]:
        """Fields of the request that do not depend on how the answer is delivered."""
        messages = [{"role": "user", "content": self.prompt}]
        if self.form is Form.REASONING:
            messages.append(_REASONING_START)
        asked: dict[str, object] = {"messages": messages}
        if not self.is_chat:
            asked = {"prompt": self.prompt}
        sampling = {"temperature": self.temperature, "seed": self.seed}
        return {"model": model, **asked, **sampling, **_FIELDS[self.form]}


def _questions(*forms: Form) -> tuple[Question, ...]:
    return tuple(
        Question(prompt, form, temperature, seed)
        for seed, prompt in enumerate(PROMPTS)
        for form in forms
        for temperature in (0.0, 0.9)
    )


QUESTIONS = _questions(Form.TEXT, Form.CHAT)
ALL_QUESTIONS = QUESTIONS + _questions(Form.TOOL_CALL, Form.JSON, Form.REASONING)
"""Of every form. Trials compare drafts on open text, where no grammar chooses the tokens."""
LONG_QUESTIONS = _questions(Form.LONG_TEXT)
"""Their answers take seconds, so that most kills of an engine meet one."""
