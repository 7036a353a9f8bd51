"""Pure builders of what a resource owns: one object per file, JSON in, JSON out.

`build` composes them. Nothing here reads a clock, a cluster or the environment.
"""

from specdecode_operator.children.build import Built, build, finished
from specdecode_operator.children.config_map import boot_text
from specdecode_operator.children.record import record_map, record_name

__all__ = ["Built", "boot_text", "build", "finished", "record_map", "record_name"]
