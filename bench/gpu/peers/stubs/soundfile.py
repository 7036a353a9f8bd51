"""Takes the place of soundfile, which SGLang imports for audio."""


def available_formats() -> dict[str, str]:
    """Return the formats that callers choose from at import."""
    return {"WAV": "WAV", "FLAC": "FLAC", "MP3": "MP3", "OGG": "OGG"}


def read(file: object) -> None:
    """Refuse audio.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError("audio is not part of this run")


SoundFile = write = read
