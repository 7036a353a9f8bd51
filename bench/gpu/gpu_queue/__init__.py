"""The queue of what only a GPU can show: `bench/gpu/queue.toml`, its runs and its results.

`make gpu-queue` is the entry, `python bench/gpu/gpu_queue` on a machine without uv. An entry is due
until a result of it has been collected, and again when a file that it names has changed.
"""
