"""A thread that allocates and frees the same buffers in a loop causes no more page faults."""

import subprocess
import sys

FAULTS = """
import ctypes, resource, threading
from specdecode_engine.process import keep_freed_memory, return_freed_tensors
{}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def rounds():  # vocabulary: allow rounds: a function of this script
    for _ in range(100):
        buffers = [libc.malloc(1 << 20) for _ in range(8)]
        for buffer in buffers:
            ctypes.memset(buffer, 1, 1 << 20)
        for buffer in reversed(buffers):
            libc.free(buffer)
thread = threading.Thread(target=rounds)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread.start(); thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(call: str) -> int:
    command = [sys.executable, "-c", FAULTS.format(call)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_pages_are_faulted_in_once() -> None:
    assert faults("") > 20_000
    assert faults("return_freed_tensors()") > 100_000, "as long as a model is loaded"
    assert faults("return_freed_tensors(); keep_freed_memory()") < 4_000
