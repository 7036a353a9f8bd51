"""What is asked: few prompts in every form, so that each answer can be compared."""

from dataclasses import dataclass

from demo.chat import QUESTION

PROMPTS = (
    "Count from one to twenty.",
    "The first day of the week",
    QUESTION,
    "Once upon a time there was",
)
TOKENS = 40


@dataclass(frozen=True, slots=True)
class Question:
    """A request whose answer is a function of its fields alone."""

    prompt: str
    is_chat: bool
    temperature: float
    seed: int

    def body(self, model: str) -> dict[str, object]:
        """Fields of the request that do not depend on how the answer is delivered."""
        asked: dict[str, object] = {"prompt": self.prompt}
        if self.is_chat:
            asked = {"messages": [{"role": "user", "content": self.prompt}]}
        sampling = {"temperature": self.temperature, "seed": self.seed, "max_tokens": TOKENS}
        return {"model": model, **asked, **sampling, "extra_body": {"ignore_eos": True}}


QUESTIONS = tuple(
    Question(prompt, is_chat, temperature, seed)
    for seed, prompt in enumerate(PROMPTS)
    for is_chat in (False, True)
    for temperature in (0.0, 0.9)
)
