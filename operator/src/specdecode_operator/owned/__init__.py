"""Pure builders of the objects that a custom resource owns, one kind per file.

`build` composes them. Nothing reads a clock, a cluster or the environment.
"""

from specdecode_operator.owned.build import (
    Built,
    Carrier,
    annotated,
    build,
    finished,
    restamped,
    shared_objects,
)
from specdecode_operator.owned.change_token import with_token
from specdecode_operator.owned.config_map import boot_text
from specdecode_operator.owned.defaulted import defaulted
from specdecode_operator.owned.inference_pool import has_foreign_labels, inference_pools
from specdecode_operator.owned.network_policy import network_policies
from specdecode_operator.owned.patch import OF_ROUTERS, access_refusals
from specdecode_operator.owned.router import (
    engines_service_name,
    routed,
    router_name,
    templates,
)
from specdecode_operator.owned.size_limits import size_limited

__all__ = [
    "OF_ROUTERS",
    "Built",
    "Carrier",
    "access_refusals",
    "annotated",
    "boot_text",
    "build",
    "defaulted",
    "engines_service_name",
    "finished",
    "has_foreign_labels",
    "inference_pools",
    "network_policies",
    "restamped",
    "routed",
    "router_name",
    "shared_objects",
    "size_limited",
    "templates",
    "with_token",
]
