"""The reference of metrics in Markdown: every series that engines export."""

from collections.abc import Iterable

from specdecode_api import names, series
from specdecode_api.series import Series

_BANDS = ", ".join(map(str, series.BATCH_BANDS))
_SHORT, _MEDIUM = (bound - 1 for bound in series.PROMPT_BOUNDS_TOKENS)

_INTRODUCTION = f"""\
# Metrics of engines

What an engine answers at `{names.PATH_METRICS}`. The chart's PodMonitor puts `deployment`, `role`,
`config_hash` and `revision` (the ReplicaSet's) on every series, beside `namespace` and `pod`.

- `table` is the hash of the speculation table that was in force; `{names.PATH_TABLE}` and
  `{names.PATH_SERVER_INFO}` tell it. An engine tells of its last {series.MAX_TABLES} tables. The
  series of an older one end, and begin at 0 should it come back, as after a restart; nothing is
  added to another table's, where it would look like traffic.
- `batch_band` is the lower bound of a band of batch sizes ({_BANDS}), the
  same for every table and pod; `batch_size` is the lower bound of a range of the table itself.
- `request_label` is the value of the header `{names.HEADER_LABEL}` if it is one of the (at most
  {names.MAX_REQUEST_LABELS}) in `serving.requestLabels`, in the boot file
  `server.request_labels`; else it is empty.
- `prompt` is `short` up to {_SHORT} tokens, `medium` up to {_MEDIUM}, else `long`; `sampling` is
  `greedy` or `sampled`, `grammar` is `free` or `constrained`.

## What a request counts as

`specdecode_portion_*` hold sums over requests, so that means and their variances follow without a
log of requests. A request counts once, when it leaves: in the band in which most of its decode
rounds ran, with its tokens, rounds and seconds in that band alone. The seconds are those of the
rounds that it was in; prompts and waiting are not among them. A request whose client left counts
with what it did, one that failed does not, and one that rounds of two tables worked on counts for
neither (`portion_mixed_requests`). A table has at most {series.MAX_STRATA} combinations of labels;
requests of further ones are in `portion_unsorted_requests`. Why so:
[decision 13](decisions/0013-the-unit-of-evidence.md).
"""


def series_reference(says_so: str) -> str:
    """Write the reference; `says_so` names what generated it."""
    groups: tuple[tuple[str, Iterable[Series]], ...] = (
        ("What the engine is", series.IDENTITY),
        ("Core", series.CORE),
        ("Requests by table", (*series.PORTIONS, series.MIXED_REQUESTS, series.UNSORTED_REQUESTS)),
        ("Calls and latencies", (*series.LATENCIES, *series.CALLS)),
        ("Depths, by band", series.DEPTHS),
        ("Depths, by range of the table", series.RANGES),
        ("Captured passes", series.GRAPHS),
    )
    parts = [f"<!-- {says_so} -->\n", _INTRODUCTION]
    for title, found in groups:
        head = "| Series | Kind | Labels | Meaning |\n| --- | --- | --- | --- |"
        parts += [f"## {title}\n", "\n".join([head, *map(_line, found)]) + "\n"]
    return "\n".join(parts)


def _line(each: Series) -> str:
    labels = ", ".join(f"`{label}`" for label in each.labels)
    return f"| `{each.sample}` | {each.kind} | {labels} | {each.help} |"
