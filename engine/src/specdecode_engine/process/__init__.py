"""The process itself: memory allocator and termination message."""
