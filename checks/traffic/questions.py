"""What is asked: few prompts in every form, so that each answer can be compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
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


class Api(StrEnum):
    """The path of an API below the URL of a Service."""

    COMPLETIONS = "completions"
    CHAT = "chat/completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


class Form(Enum):
    """The form of a request, and of its answer."""

    TEXT = auto()
    LONG_TEXT = auto()
    CHAT = auto()
    TOOL_CALL = auto()
    JSON = auto()
    REASONING = auto()
    RESPONSE = auto()
    RESPONSE_CALL = auto()
    MESSAGE = auto()
    MESSAGE_CALL = auto()
    MESSAGE_THINKING = auto()


_APIS = {
    Form.TEXT: Api.COMPLETIONS,
    Form.LONG_TEXT: Api.COMPLETIONS,
    Form.RESPONSE: Api.RESPONSES,
    Form.RESPONSE_CALL: Api.RESPONSES,
    Form.MESSAGE: Api.MESSAGES,
    Form.MESSAGE_CALL: Api.MESSAGES,
    Form.MESSAGE_THINKING: Api.MESSAGES,
}
_OPEN = {"max_tokens": TOKENS, "ignore_eos": True}
_FIELDS: Mapping[Form, Mapping[str, object]] = MappingProxyType(
    {
        Form.TEXT: _OPEN,
        Form.LONG_TEXT: {"max_tokens": LONG_TOKENS, "ignore_eos": True},
        Form.CHAT: _OPEN,
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
            **_OPEN,
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
        Form.RESPONSE: {"max_output_tokens": TOKENS, "ignore_eos": True},
        Form.RESPONSE_CALL: {
            "max_output_tokens": STRUCTURED_TOKENS,
            "tools": [{"type": "function", **TOOL}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
        Form.MESSAGE: _OPEN,
        Form.MESSAGE_CALL: {
            "max_tokens": STRUCTURED_TOKENS,
            "tools": [{"name": TOOL["name"], "input_schema": SCHEMA, "strict": True}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        },
        Form.MESSAGE_THINKING: _OPEN,
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
    def api(self) -> Api:
        return _APIS.get(self.form, Api.CHAT)

    def body(self, model: str, *, is_stream: bool) -> dict[str, object]:
        """The body of the request."""
        sampling = {"temperature": self.temperature, "seed": self.seed, "stream": is_stream}
        return {"model": model, **self._given(), **sampling, **_FIELDS[self.form]}

    def _given(self) -> dict[str, object]:
        if self.api is Api.COMPLETIONS:
            return {"prompt": self.prompt}
        if self.api is Api.RESPONSES:
            return {"input": self.prompt}
        messages = [{"role": "user", "content": self.prompt}]
        if self.form in (Form.REASONING, Form.MESSAGE_THINKING):
            messages.append(_REASONING_START)
        return {"messages": messages}


def _questions(*forms: Form) -> tuple[Question, ...]:
    return tuple(
        Question(prompt, form, temperature, seed)
        for seed, prompt in enumerate(PROMPTS)
        for form in forms
        for temperature in (0.0, 0.9)
    )


QUESTIONS = _questions(Form.TEXT, Form.CHAT)
ALL_QUESTIONS = _questions(*(form for form in Form if form is not Form.LONG_TEXT))
"""Of every other form. Trials compare drafts on open text, where no grammar chooses the tokens."""
LONG_QUESTIONS = _questions(Form.LONG_TEXT)
"""Their answers take seconds, so that most kills of an engine meet one."""
