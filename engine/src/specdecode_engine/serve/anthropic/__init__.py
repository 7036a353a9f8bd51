"""Anthropic's Messages API, on the chat of OpenAI's."""
