"""The two names that SGLang imports."""


def display(*shown: object) -> None:
    """Show nothing."""


class HTML:
    """Keeps nothing."""

    def __init__(self, text: str) -> None:
        pass
