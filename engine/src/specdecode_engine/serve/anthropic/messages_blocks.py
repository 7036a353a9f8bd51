"""The messages of a body: blocks of text, calls, results and thinking."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from specdecode_engine.serve.errors import SHOWN_VALUE_CHARS, field_error


class _InputBlock(BaseModel):
    """Unknown fields, such as `cache_control` and `citations`, change no answer."""

    model_config = ConfigDict(strict=True, frozen=True)


class TextBlock(_InputBlock):
    """Text of the prompt, or of an earlier answer."""

    type: Literal["text"]
    text: str


def _known(*kinds: str) -> BeforeValidator:
    """Return what refuses a block of another type by its name."""

    def check(block: object) -> object:
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            raise field_error(
                "type",
                f"blocks of type {kind[:SHOWN_VALUE_CHARS]!r} are not supported; remove it, or "
                f"send one of type {' or '.join(kinds)}",
            )
        return block

    return BeforeValidator(check)


def _as_blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Texts = Annotated[
    list[Annotated[TextBlock, _known("text")]],
    Field(fail_fast=True),
    BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock]),
]
"""A text, or blocks of text."""


class ToolUseBlock(_InputBlock):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(_InputBlock):
    """The result of a call; the chat template gets `is_error` as a field of the message."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = []
    is_error: bool | None = None


class ThinkingBlock(_InputBlock):
    """Reasoning before an answer; the signature is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_InputBlock):
    """Reasoning of another server, which is not read."""

    type: Literal["redacted_thinking"]
    data: str | None = None


def _block_type(block: object) -> str:
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return str(kind)


_Any = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")],
    Discriminator(
        _block_type,
        custom_error_type="block_type",
        custom_error_message="a block is an object with a type; send one, or a text as content",
    ),
]
Block = Annotated[_Any, _known("text", "tool_use", "tool_result", "thinking", "redacted_thinking")]
_OF_ROLE = {
    "system": (TextBlock,),
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ToolUseBlock, ThinkingBlock, RedactedThinkingBlock),
}


class InputMessage(BaseModel):
    """A message of the user with results of calls, of the assistant with its calls, or a rule."""

    model_config = ConfigDict(strict=True, frozen=True)

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[Block],
        Field(fail_fast=True),
        BeforeValidator(_as_blocks, json_schema_input_type=str | list[_Any]),
    ]

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        for index, block in enumerate(self.content):
            if not isinstance(block, _OF_ROLE[self.role]):
                message = f"a message of role {self.role} has no {block.type}; change its role"
                raise field_error(f"content[{index}].type", message)
        return self
