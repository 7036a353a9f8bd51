"""What a GPU would have refused, or answered wrongly."""


class MixedDevices(RuntimeError):
    """An operation was given tensors of both devices."""


class CaptureRefused(RuntimeError):
    """The host waited, or copied from pageable memory, while a CUDA graph was being captured."""


class HostBufferMisused(RuntimeError):
    """A host buffer was freed or overwritten while a copy from it was still to come."""
