"""How far an exchange of the draft is, as the status and its conditions report it. Pure."""

from typing import Literal

from specdecode_api.v1alpha1 import DraftExchangeStatus, PodDraftStatus
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.updates.draft_exchange import DraftExchange, PodState

MAX_PODS, MAX_MESSAGE = 16, 1024


def exchange_status(
    exchange: DraftExchange | None, resource: Manifest, config_hash: str | None
) -> DraftExchangeStatus | Manifest | None:
    """The exchange of this configuration's draft; what is known of it stays until the next one."""
    before: Manifest = (resource.get("status") or {}).get("draftExchange") or {}
    known = before if before and before["configHash"] == config_hash else None
    uri = _uri(resource)
    if exchange is None or config_hash is None or not uri:
        return known
    if exchange.carrier is not None and exchange.is_complete and not exchange.states:
        return known
    return DraftExchangeStatus(
        uri=uri,
        config_hash=config_hash,
        state=_state(exchange),
        exchanged=exchange.exchanged,
        total=len(exchange.states),
        message=(exchange.why_not or exchange.refusal)[:MAX_MESSAGE],
        pods=[
            PodDraftStatus.model_validate(
                {"name": name, "state": state, "message": message[:MAX_MESSAGE]}
            )
            for name, (state, message) in sorted(exchange.states.items())
            if state is not PodState.EXCHANGED
        ][:MAX_PODS],
    )


def updated(exchange: DraftExchange | None, by_template: int) -> int:
    """Pods that run the wanted configuration; during an exchange all have one template."""
    is_under_way = exchange is not None and not exchange.is_complete
    return exchange.exchanged if exchange is not None and is_under_way else by_template


def progress(exchange: DraftExchange | None, resource: Manifest) -> str:
    """How many engines use the draft, and one that does not; empty where none exchanges it."""
    if exchange is None or exchange.is_complete:
        return ""
    waiting = [
        f"{name}: {message or state}"
        for name, (state, message) in sorted(exchange.states.items())
        if state is not PodState.EXCHANGED
    ]
    count = f"{exchange.exchanged} of {len(exchange.states)}"
    return "; ".join((f"{count} engines draft with {_uri(resource)}", *waiting[:1]))


def refusal(exchange: DraftExchange | None, resource: Manifest) -> str:
    """Why running engines keep the old draft, and the remedies; empty where none refuses."""
    if exchange is None or not exchange.refusal:
        return ""
    return (
        f"spec.speculation.draft.uri {_uri(resource)}: {exchange.refusal}; repair the checkpoint, "
        "which engines read again every minute, or return to the draft in use"
    )


def _state(
    exchange: DraftExchange,
) -> Literal["Exchanging", "Exchanged", "Refused", "ReplacingPods"]:
    if exchange.carrier is None:
        return "ReplacingPods"
    if exchange.is_complete:
        return "Exchanged"
    return "Refused" if exchange.refusal else "Exchanging"


def _uri(resource: Manifest) -> str:
    draft = ((resource.get("spec") or {}).get("speculation") or {}).get("draft") or {}
    return str(draft.get("uri") or "")
