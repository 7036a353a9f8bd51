"""The metrics reference in Markdown: every metric that engines and routers export."""

from collections.abc import Iterable

from specdecode_api import metrics, names
from specdecode_api.metrics import MetricSpec, router

_BUCKETS = ", ".join(map(str, metrics.BATCH_BUCKETS))
_SHORT, _MEDIUM = (bound - 1 for bound in metrics.PROMPT_BOUNDS_TOKENS)

_INTRODUCTION = f"""\
# Metrics of engines and routers

The metrics of an engine at `{names.PATH_METRICS}`. The chart's PodMonitor adds `deployment`,
`role`, `config_hash` and `revision` (of the ReplicaSet) to every series, next to `namespace` and
`pod`.

- `table` is the hash of the speculation table in use; `{names.PATH_TABLE}` and
  `{names.PATH_SERVER_INFO}` return it. An engine exports its {metrics.MAX_TABLES} most recently
  used tables. The series of an older table end, and start at 0 if that table is used again, as
  after a restart; nothing is added to another table's series, where it would look like traffic.
- `batch_bucket` is the lower bound of a fixed bucket of batch sizes ({_BUCKETS}),
  the same for every table and pod; `batch_size` is the lower bound of a range of the table itself.
- `num_steps` is the number of draft steps.
- `request_label` is the value of the header `{names.HEADER_LABEL}` if it is one of the (at most
  {names.MAX_REQUEST_LABELS}) in `serving.requestLabels` (boot file: `server.request_labels`), else
  empty.
- `prompt` is `short` up to {_SHORT} tokens, `medium` up to {_MEDIUM}, else `long`; `sampling` is
  `greedy` or `sampled`, `grammar` is `free` or `constrained`.

## How requests are counted

`specdecode_request_sum_*` contain sums over requests, from which tokens per step and seconds per
token follow without a request log. A request is counted once, when it ends: in the bucket of most
of its decode steps, with its tokens, steps and seconds in that bucket alone. The seconds are those
of its decode steps; prefill and waiting are not included. A request whose client disconnected is
counted until then, a failed request is not counted, and a request that was decoded under two tables
is counted for neither (`request_sum_mixed_requests`). A table has at most {metrics.MAX_STRATA}
combinations of labels; requests of further ones are in `request_sum_unsorted_requests`. Reasons:
[decision 13](decisions/0013-the-unit-of-evidence.md).
"""


def metrics_reference(notice: str) -> str:
    """Write the reference; `notice` names what generated it."""
    groups: tuple[tuple[str, Iterable[MetricSpec]], ...] = (
        ("Identity", metrics.IDENTITY),
        ("Core", metrics.CORE),
        (
            "Requests by table",
            (*metrics.REQUEST_SUMS, metrics.MIXED_REQUESTS, metrics.UNSORTED_REQUESTS),
        ),
        ("HTTP requests and latencies", (*metrics.LATENCIES, *metrics.CALLS)),
        ("Draft steps, by batch bucket", metrics.BUCKETS),
        ("Draft steps, by range of the table", metrics.RANGES),
        ("CUDA graphs", metrics.GRAPHS),
        ("Routers", router.ROUTER),
    )
    parts = [f"<!-- {notice} -->\n", _INTRODUCTION]
    for title, found in groups:
        head = "| Metric | Type | Labels | Meaning |\n| --- | --- | --- | --- |"
        parts += [f"## {title}\n", "\n".join([head, *map(_line, found)]) + "\n"]
    return "\n".join(parts)


def _line(each: MetricSpec) -> str:
    labels = ", ".join(f"`{label}`" for label in each.labels)
    return f"| `{each.sample}` | {each.type} | {labels} | {each.help} |"
