"""Reconciles keys of the queue, one at a time."""

import logging

from specdecode_operator.cluster import KubeApiError
from specdecode_operator.observed import Key
from specdecode_operator.queue import Queue
from specdecode_operator.reconcile import Reconciler

log = logging.getLogger(__name__)


async def work(queue: Queue[Key], reconciler: Reconciler) -> None:
    """Work until cancelled; an error delays only its own key."""
    while True:
        key = await queue.get()
        try:
            await _work_on(key, queue, reconciler)
        finally:
            queue.done(key)


async def _work_on(key: Key, queue: Queue[Key], reconciler: Reconciler) -> None:
    metrics = reconciler.metrics
    try:
        with metrics.reconcile_seconds.time():
            look_again_s = await reconciler.reconcile(key)
    except Exception as error:
        delay_s = queue.retry(key)
        metrics.reconciles.labels(result="error").inc()
        log.warning(
            "reconcile failed",
            exc_info=not isinstance(error, KubeApiError),
            extra={
                "namespace": key.namespace,
                "resource": key.name,
                "why": str(error),
                "retry_s": round(delay_s, 1),
            },
        )
        return
    queue.forget(key)
    metrics.reconciles.labels(result="success").inc()
    if look_again_s is not None:
        queue.add_after(key, look_again_s)
