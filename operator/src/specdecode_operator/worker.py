"""Takes keys from the queue and reconciles them, one after the other."""

import logging

from specdecode_operator.cluster import ApiError
from specdecode_operator.observed import Key
from specdecode_operator.queue import Queue
from specdecode_operator.reconcile import Reconciler

log = logging.getLogger(__name__)


async def work(queue: Queue[Key], reconciler: Reconciler) -> None:
    """Work for ever; an error delays its key and no other."""
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
            "failed",
            exc_info=not isinstance(error, ApiError),
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
