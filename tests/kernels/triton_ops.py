"""The Triton backend that tests of kernels call, with checked arguments."""

from specdecode_kernels.testing import DEVICE, backend_of, checked

TRITON = checked(backend_of("triton", DEVICE))
