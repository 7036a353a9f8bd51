"""The custom resource `SpecDecodeDeployment`: what a user writes and what the operator answers.

One file per part. A rule that spans fields stands beside the fields: once in CEL for the API
server, once as a function for Python (see `specdecode_api.rules`).
"""

from specdecode_api.v1alpha1.download import Download, TokenSecret
from specdecode_api.v1alpha1.environment import Variable
from specdecode_api.v1alpha1.model import Draft, Model
from specdecode_api.v1alpha1.pod import Pod
from specdecode_api.v1alpha1.resolve import ResolvedSpeculation, resolve
from specdecode_api.v1alpha1.resources import Resources
from specdecode_api.v1alpha1.rollout import Canary, Guard, Rollout, Switchback
from specdecode_api.v1alpha1.rollout_status import (
    ArmShown,
    BandRates,
    Effective,
    HistoryEntry,
    Interval,
    Recommendation,
    RolloutRequest,
    StratumShown,
    TableSteps,
    TrialStatus,
)
from specdecode_api.v1alpha1.serving import ApiKeys, Lifecycle, Serving
from specdecode_api.v1alpha1.spec import Spec, SpecDecodeDeployment
from specdecode_api.v1alpha1.speculation import Speculation
from specdecode_api.v1alpha1.status import Condition, Hold, ModelStatus, Status
from specdecode_api.v1alpha1.table import Adaptive, BatchSizeEntry

__all__ = [
    "Adaptive",
    "ApiKeys",
    "ArmShown",
    "BandRates",
    "BatchSizeEntry",
    "Canary",
    "Condition",
    "Download",
    "Draft",
    "Effective",
    "Guard",
    "HistoryEntry",
    "Hold",
    "Interval",
    "Lifecycle",
    "Model",
    "ModelStatus",
    "Pod",
    "Recommendation",
    "ResolvedSpeculation",
    "Resources",
    "Rollout",
    "RolloutRequest",
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
