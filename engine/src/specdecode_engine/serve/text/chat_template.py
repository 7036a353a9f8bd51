"""The chat template: renders a conversation to the text that the model continues."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdecode_engine.serve import errors

Render = Callable[[list[dict[str, Any]]], str]


class ChatTemplate:
    """The checkpoint's chat template; `render` is None where it has none."""

    def __init__(self, render: Render | None) -> None:
        self._render = render

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt for the assistant's next message."""
        if self._render is None:
            raise errors.invalid(
                "messages",
                "this model has no chat template; use /v1/completions",
                "no_chat_template",
            )
        try:
            return self._render([dict(message) for message in messages])
        except Exception as error:  # a template is a program and may raise anything
            raise errors.invalid(
                "messages", f"the model's chat template refuses the messages: {error}"
            ) from error
