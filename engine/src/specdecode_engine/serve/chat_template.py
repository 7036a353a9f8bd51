"""A conversation to the text that the model was trained to continue."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from specdecode_engine.serve import errors


class ChatTemplate:
    """The checkpoint's own template, if it has one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt for the assistant's next turn."""
        if not self._tokenizer.chat_template:
            raise errors.invalid(
                "messages",
                "this model has no chat template, so it cannot chat; use /v1/completions",
                "no_chat_template",
            )
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tokenize=False,
                    add_generation_prompt=True,
                )
            )
        except Exception as error:  # a template is a program; what it raises is for the client
            raise errors.invalid(
                "messages", f"the model's chat template refuses the messages: {error}"
            ) from error
