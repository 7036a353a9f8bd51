"""The custom resource `SpecDecodeDeployment`: spec and status.

One file per part. A rule that spans fields is next to the fields: in CEL for the API server and
as a function for Python (see `specdecode_api.rules`).
"""

from specdecode_api.v1alpha1.download import DownloadSpec, TokenSecret
from specdecode_api.v1alpha1.environment import Variable
from specdecode_api.v1alpha1.model import DraftSpec, Model
from specdecode_api.v1alpha1.pod import Pod
from specdecode_api.v1alpha1.resolve import ResolvedSpeculation, resolve
from specdecode_api.v1alpha1.resources import Resources
from specdecode_api.v1alpha1.rollout import Canary, GuardSpec, RolloutSpec, Switchback
from specdecode_api.v1alpha1.rollout_status import (
    ArmShown,
    BandRates,
    Effective,
    HistoryEntry,
    IntervalStatus,
    RecommendationStatus,
    RolloutRequest,
    StratumShown,
    TableSteps,
    TrialStatus,
)
from specdecode_api.v1alpha1.serving import ApiKeysSpec, LifecycleSpec, Serving
from specdecode_api.v1alpha1.spec import Spec, SpecDecodeDeployment
from specdecode_api.v1alpha1.speculation import Speculation
from specdecode_api.v1alpha1.status import Condition, Hold, ModelStatus, Status
from specdecode_api.v1alpha1.table import Adaptive, BatchSizeEntry

__all__ = [
    "Adaptive",
    "ApiKeysSpec",
    "ArmShown",
    "BandRates",
    "BatchSizeEntry",
    "Canary",
    "Condition",
    "DownloadSpec",
    "DraftSpec",
    "Effective",
    "GuardSpec",
    "HistoryEntry",
    "Hold",
    "IntervalStatus",
    "LifecycleSpec",
    "Model",
    "ModelStatus",
    "Pod",
    "RecommendationStatus",
    "ResolvedSpeculation",
    "Resources",
    "RolloutRequest",
    "RolloutSpec",
    "Serving",
    "Spec",
    "SpecDecodeDeployment",
    "Speculation",
    "Status",
    "StratumShown",
    "Switchback",
    "TableSteps",
    "TokenSecret",
    "TrialStatus",
    "Variable",
    "resolve",
]
