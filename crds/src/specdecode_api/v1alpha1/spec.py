"""The resource itself: what a user wants, under a name that leaves room for those of children."""

import re
from typing import Annotated, ClassVar, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints

from specdecode_api import names
from specdecode_api.base import HOT, RESTART, ResourceRecord
from specdecode_api.quantity import amount
from specdecode_api.rules import Checked, Rule, or_default
from specdecode_api.speculation import MAX_PAGE_SIZE, Algorithm
from specdecode_api.v1alpha1.engine import EngineSpec
from specdecode_api.v1alpha1.inference_pool import InferencePoolSpec
from specdecode_api.v1alpha1.lifecycle import LifecycleSpec
from specdecode_api.v1alpha1.model import DownloadSpec, Model
from specdecode_api.v1alpha1.parallelism import ParallelismSpec
from specdecode_api.v1alpha1.resources import (
    ACCELERATOR_DOMAIN,
    IS_ACCELERATOR,
    WHOLE_GPU,
    Resources,
)
from specdecode_api.v1alpha1.rollout import RolloutSpec
from specdecode_api.v1alpha1.router import RouterSpec
from specdecode_api.v1alpha1.runtime_rules import RUNTIME_RULES, WORLD_SIZE
from specdecode_api.v1alpha1.scalars import Int
from specdecode_api.v1alpha1.serving import Serving
from specdecode_api.v1alpha1.speculation import Speculation
from specdecode_api.v1alpha1.status import Status
from specdecode_api.v1alpha1.template import TemplateSpec
from specdecode_api.v1alpha1.update_strategy import UpdateStrategySpec

PAGE_SIZES: Final = tuple(2**power for power in range(MAX_PAGE_SIZE.bit_length()))

PageSize = Annotated[
    Int,
    Checked(
        Rule(
            cel=f"self in {list(PAGE_SIZES)}",
            holds=lambda page_size: page_size in PAGE_SIZES,
            message="pageSize must be a power of two: use one of "
            + ", ".join(map(str, PAGE_SIZES)),
        )
    ),
]


_TENSOR: Final = or_default("parallelism.tensor", 1)
_ON_GPU: Final = f"{or_default('engine.device', 'GPU')} == 'GPU'"
_HAS_ONE_RANK: Final = f"{WORLD_SIZE} == 1"
# A number: the API server knows no bound for the text of one, which another quantity would need.
_AMOUNT: Final = "quantity(string(self.resources.{}[k])).asApproximateFloat()"


def _accelerators_are(condition: str) -> str:
    """Return the CEL condition that all accelerators of limits and requests meet another one.

    Args:
        condition: a condition on the name `k` and the number AMOUNT.
    """
    clauses = (
        f"(!has(self.resources.{field}) || self.resources.{field}.all(k, !{IS_ACCELERATOR} || "
        f"{condition.replace('AMOUNT', _AMOUNT.format(field))}))"
        for field in ("limits", "requests")
    )
    return f"(!has(self.resources) || {' && '.join(clauses)})"


class Spec(ResourceRecord):
    """What the user wants."""

    model: Model = Field(description="The target model.")
    download: DownloadSpec = Field(
        default=DownloadSpec(), description="How models of hf:// reach the pods."
    )
    page_size: PageSize = Field(
        default=16, description="Tokens in a page of the key-value cache; a power of two."
    )
    speculation: Speculation = Field(default=Speculation(), description="How to draft.")
    engine: EngineSpec = Field(
        default=EngineSpec(), description="One engine: image, device, memory and limits."
    )
    parallelism: ParallelismSpec = Field(
        default=ParallelismSpec(), description="How an engine computes on several GPUs."
    )
    serving: Serving = Field(
        default=Serving(), description="The endpoint: API keys and request labels."
    )
    router: RouterSpec | None = Field(
        default=None,
        json_schema_extra=RESTART,
        description="Routers in front of the engines: a stream survives its engine, and requests "
        "go to the engine that knows most of their prompt. The Service then leads to them; without "
        "it to the engines.",
    )
    inference_pool: InferencePoolSpec | None = Field(
        default=None,
        description="An InferencePool of the Gateway API Inference Extension that selects the "
        "engines, for the HTTPRoutes of a Gateway; not with router.",
    )
    lifecycle: LifecycleSpec = Field(default=LifecycleSpec(), description="Start and end of a pod.")
    update_strategy: UpdateStrategySpec = Field(
        default=UpdateStrategySpec(), description="How a rollout replaces engines."
    )
    replicas: Int = Field(
        default=1, ge=0, le=1000, json_schema_extra=HOT, description="Engine pods."
    )
    resources: Resources = Field(default=Resources(), description="Compute resources of a pod.")
    template: TemplateSpec = Field(
        default=TemplateSpec(),
        description="PodTemplate of the engines, for scheduling, environment variables, sidecars "
        "and volumes.",
    )
    rollout: RolloutSpec = Field(
        default=RolloutSpec(), description="How a change of the configuration comes into force."
    )

    rules: ClassVar[tuple["Rule[Spec]", ...]] = (
        Rule(
            cel=_accelerators_are(f"AMOUNT <= double({_ON_GPU} ? {WORLD_SIZE} : 0)"),
            holds=lambda it: all(
                amount(quantity) <= it.gpus for _, quantity in it.resources.accelerators()
            ),
            message="an engine computes on tensor × pipeline × data accelerators of parallelism (1 "
            "where absent), on none with engine.device CPU, and would leave the others idle: lower "
            "limits and requests, raise parallelism.tensor, or raise replicas for more engines",
            field="resources",
        ),
        Rule(
            cel=f"{_HAS_ONE_RANK} || !({_ON_GPU}) || "
            + _accelerators_are(f"k == '{WHOLE_GPU}' && AMOUNT >= double({WORLD_SIZE})"),
            holds=lambda it: (
                it.gpus <= 1
                or all(
                    name == WHOLE_GPU and amount(quantity) >= it.gpus
                    for name, quantity in it.resources.accelerators()
                )
            ),
            message="with several ranks each computes on a whole GPU of its own: set "
            f"{WHOLE_GPU} to parallelism.tensor (× pipeline × data), or leave out what is under "
            f"{ACCELERATOR_DOMAIN}, so that the operator requests as many",
            field="resources",
        ),
        Rule(
            cel=f"{_TENSOR} == 1 || "
            f"{or_default('speculation.algorithm', 'NONE')} != '{Algorithm.FROZEN_KV_MTP}'",
            holds=lambda it: (
                it.parallelism.tensor == 1
                or it.speculation.algorithm is not Algorithm.FROZEN_KV_MTP
            ),
            message="the draft of FROZEN_KV_MTP reads all keys and values of the target, of which "
            "each rank has a part: set parallelism.tensor to 1, or choose another algorithm",
            field="speculation",
        ),
        Rule(
            cel=f"{or_default('model.sumOrder', 'Auto')} != 'Blocks32' || "
            f"(!({_ON_GPU}) && {or_default('model.dtype', 'auto')} == 'bfloat16')",
            holds=lambda it: (
                it.model.sum_order != "Blocks32"
                or (it.engine.device == "CPU" and it.model.dtype == "bfloat16")
            ),
            message="model.sumOrder Blocks32 is for rows of bfloat16 on a CPU (model.dtype auto is "
            "float32 there): set engine.device to CPU and model.dtype to bfloat16, or remove "
            "model.sumOrder",
            field="model",
        ),
        Rule(
            cel="!has(self.router) || !has(self.inferencePool)",
            holds=lambda it: it.router is None or it.inference_pool is None,
            message="requests of an InferencePool go from the Gateway to an engine and pass no "
            "router, so that nothing would continue their streams: remove inferencePool or router",
            field="inferencePool",
            reason="FieldValueForbidden",
        ),
        *RUNTIME_RULES,
    )

    @property
    def gpus(self) -> int:
        """GPUs of a pod: one for each rank, none on a CPU."""
        return self.parallelism.world_size if self.engine.device == "GPU" else 0


class Metadata(ResourceRecord):
    """The part of the metadata that has rules of ours."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, StringConstraints(min_length=1, max_length=253)]


class SpecDecodeDeployment(ResourceRecord):
    """A speculative-decoding deployment: a model, how to draft for it, and how to serve it."""

    api_version: Literal["specdecode.io/v1alpha1"] = "specdecode.io/v1alpha1"
    kind: Literal["SpecDecodeDeployment"] = "SpecDecodeDeployment"
    metadata: Metadata
    spec: Spec = Field(description="What the user wants.")
    status: Status | None = Field(default=None, description="What the operator sees.")

    rules: ClassVar[tuple["Rule[SpecDecodeDeployment]", ...]] = (
        Rule(
            cel=f"self.metadata.name.size() <= {names.MAX_NAME_LENGTH}",
            holds=lambda it: len(it.metadata.name) <= names.MAX_NAME_LENGTH,
            message=f"metadata.name may have at most {names.MAX_NAME_LENGTH} characters, because "
            "names of Services and labels of pods are made from it: choose a shorter one",
        ),
        Rule(
            cel=f"self.metadata.name.matches('^{names.NAME_PATTERN}$')",
            holds=lambda it: re.fullmatch(names.NAME_PATTERN, it.metadata.name) is not None,
            message="metadata.name becomes the name of a Service: use lower case letters, digits "
            "and '-', with a letter first and no '-' at the end",
        ),
    )
