"""`python -m checks.request_trace.traced_server BOOT PORT`: serves, traces one answer, prints JSON.

The server runs on the main thread, as in production; the client on another thread.
"""

import json
import os
import signal
import sys
import threading
from dataclasses import dataclass, field

from checks.request_trace.calls import CallRecorder, file_name, function_name, median_step
from checks.request_trace.client import read_completion, read_first_completion
from checks.request_trace.records import RecordCounter
from specdecode_engine.__main__ import main as serve_engine

MODEL = "target"
PROMPT = "The quick start of a cluster begins with"
TOKENS = 24


@dataclass(slots=True)
class Trace:
    """What was traced, or why nothing was."""

    text: str = ""
    files: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    calls_per_step: int = 0
    record_types: list[str] = field(default_factory=list)
    error: str = ""


def trace_second_answer(port: int, calls: CallRecorder, trace: Trace) -> None:
    """Ask twice, trace the second answer, then end the server."""
    try:
        first = read_first_completion(port, MODEL, PROMPT, TOKENS)
        records = RecordCounter()
        records.install()
        calls.is_recording = records.is_recording = True
        trace.text = read_completion(port, MODEL, PROMPT, TOKENS)
        calls.is_recording = records.is_recording = False
        if trace.text != first:
            raise ValueError(f"two equal requests were answered {first!r} and {trace.text!r}")
        traced = calls.take()
        trace.files = sorted({file_name(code) for code in traced})
        trace.functions = sorted({function_name(code) for code in traced})
        trace.calls_per_step = median_step(traced)
        trace.record_types = sorted(records.names)
    except Exception as error:
        trace.error = f"{type(error).__name__}: {error}"
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def main(boot: str, port: str) -> int:
    """Serve until the second answer was traced; the last line of output is the trace as JSON."""
    calls, trace = CallRecorder(), Trace()
    # Started first: the client's own calls are not traced.
    client = threading.Thread(target=trace_second_answer, args=(int(port), calls, trace))
    client.start()
    calls.install()
    code = serve_engine(["--boot", boot, "--host", "127.0.0.1", "--port", port])
    sys.setprofile(None)
    client.join()
    print(json.dumps({name: getattr(trace, name) for name in Trace.__slots__}))
    return code or int(bool(trace.error))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
