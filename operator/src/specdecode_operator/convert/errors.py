"""Why a command line cannot be converted."""


class ConvertError(Exception):
    """A command line that is refused; `sentences` contain flag, reason and remedy, and no key."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences
