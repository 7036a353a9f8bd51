"""Why a release stops."""


class ReleaseError(Exception):
    """A step cannot be done; the message has the value, the place and the remedy."""
