"""Why a process ended, left in a file for whoever started it to read; nothing without such a file.

In a pod the file is the container's termination log, which Kubernetes puts into the pod's status.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from specdecode_api import names
from specdecode_api.report import LastWords, Reason

log = logging.getLogger(__name__)


def words_for(error: Exception) -> LastWords:
    """Say an error in one word, if its class has one, and a sentence."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, Reason):
        return LastWords(reason=reason, message=str(error))
    return LastWords(reason=Reason.ENGINE_FAILED, message=f"{type(error).__name__}: {error}")


def leave(words: LastWords, environment: Mapping[str, str] = os.environ) -> None:
    """Write `words` into the file that the environment names, if it names one."""
    path = environment.get(names.VARIABLE_LAST_WORDS)
    if not path:
        return
    try:
        Path(path).write_bytes(words.encode())
    except OSError as error:
        log.warning("cannot leave the reason of this end in %s: %s", path, error)
