"""The custom resources `SpecDecodeDeployment` and `SpecDecodeTrial`: spec and status.

One file per part. A rule that spans fields is next to the fields: in CEL for the API server and
as a function for Python (see `specdecode_api.rules`).
"""

from specdecode_api.v1alpha1.engine import EngineSpec
from specdecode_api.v1alpha1.inference_pool import InferencePoolSpec
from specdecode_api.v1alpha1.lifecycle import LifecycleSpec
from specdecode_api.v1alpha1.resources import Resources
from specdecode_api.v1alpha1.rollout import RolloutSpec
from specdecode_api.v1alpha1.rollout_status import (
    BucketRates,
    Effective,
    ExplorationStatus,
    RecommendationStatus,
    TableSteps,
)
from specdecode_api.v1alpha1.router import RouterSpec, RouterTemplateSpec
from specdecode_api.v1alpha1.spec import Spec, SpecDecodeDeployment
from specdecode_api.v1alpha1.speculation import Speculation
from specdecode_api.v1alpha1.status import (
    DraftExchangeStatus,
    ModelStatus,
    PodDraftStatus,
    Status,
)
from specdecode_api.v1alpha1.table import Adaptive, BatchSizeEntry
from specdecode_api.v1alpha1.template import TemplateSpec
from specdecode_api.v1alpha1.trial import (
    Candidate,
    SpecDecodeTrial,
    SpecDecodeTrialSpec,
    SpecDecodeTrialStatus,
    TrialArm,
    TrialGuard,
)
from specdecode_api.v1alpha1.update_strategy import UpdateStrategySpec

__all__ = [
    "Adaptive",
    "BatchSizeEntry",
    "BucketRates",
    "Candidate",
    "DraftExchangeStatus",
    "Effective",
    "EngineSpec",
    "ExplorationStatus",
    "InferencePoolSpec",
    "LifecycleSpec",
    "ModelStatus",
    "PodDraftStatus",
    "RecommendationStatus",
    "Resources",
    "RolloutSpec",
    "RouterSpec",
    "RouterTemplateSpec",
    "Spec",
    "SpecDecodeDeployment",
    "SpecDecodeTrial",
    "SpecDecodeTrialSpec",
    "SpecDecodeTrialStatus",
    "Speculation",
    "Status",
    "TableSteps",
    "TemplateSpec",
    "TrialArm",
    "TrialGuard",
    "UpdateStrategySpec",
]
