"""Tables of all metrics, from the figures of a process and of the dashboard.

Names, types, labels and texts are those that `/metrics` serves. Only the names in Kafka Streams are
written here.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from tidewheel.streams.dashboard.metrics import GAUGES
from tidewheel.streams.web.prometheus import metric_name
from tidewheel.streams.worker.application.application_state import KafkaStreamsState
from tidewheel.streams.worker.figures import ProcessFigures, families
from tidewheel.tasks.figures import LATENCY_S, Family, Histogram

_CLIENTS: Final = ("consumer", "producer")
_OURS: Final = "-"
_UNITS: Final = {"seconds": "s", "bytes": "bytes"}
#: Unit of the first part that a name has.
_COUNTED: Final = {
    "write_rate": "bytes/s",
    "per_second": "records/s",
    "byte": "bytes",
    "record": "records",
}

#: The group of each level in Kafka Streams.
GROUPS: Final = {
    "client": "stream-metrics",
    "thread": "stream-thread-metrics",
    "task": "stream-task-metrics",
    "node": "stream-processor-node-metrics",
    "store": "stream-state-metrics",
    "consumer": "consumer-metrics",
    "producer": "producer-metrics",
}
LEVELS: Final = tuple(GROUPS)

#: By family: the name in Kafka Streams, with its group where that is not the level's own. "=" is
#: the family's name without level and unit. A family without an entry exists here only.
KAFKA_STREAMS_NAMES: Final = {
    "client-state": "client-state",
    "client-alive-stream-threads": "=",
    "client-block-cache-capacity-bytes": "stream-state-metrics:block-cache-capacity",
    "client-block-cache-usage-bytes": "stream-state-metrics:block-cache-usage",
    "thread-process-total": "=",
    "thread-commit-total": "=",
    "thread-commit-latency-seconds": "commit-latency-avg, commit-latency-max",
    "thread-restore-total": "stream-task-metrics:restore-total",
    "thread-restore-remaining-records": "stream-task-metrics:restore-remaining-records-total",
    "task-process-total": "=",
    "task-dropped-records-total": "=",
    "task-punctuate-total": "=",
    "task-enforced-processing-total": "=",
    "task-buffered-records": "active-buffer-count",
    "node-process-total": "=",
    "node-suppression-emit-total": "=",
    "node-emitted-records-total": "=",
    "node-record-e2e-latency-avg-seconds": "=",
    "node-record-e2e-latency-min-seconds": "=",
    "node-record-e2e-latency-max-seconds": "=",
    "store-put-total": "put-rate",
    "store-background-errors": "=",
    "store-compaction-pending": "=",
    "store-cur-size-all-mem-tables-bytes": "=",
    "store-estimate-num-keys": "=",
    "store-estimate-pending-compaction-bytes": "estimate-pending-compaction-bytes",
    "store-estimate-table-readers-mem-bytes": "=",
    "store-live-sst-files-size-bytes": "=",
    "store-mem-table-flush-pending": "=",
    "store-num-immutable-mem-table": "=",
    "store-num-live-versions": "=",
    "store-num-running-compactions": "=",
    "store-num-running-flushes": "=",
    "store-size-all-mem-tables-bytes": "=",
    "store-total-sst-files-size-bytes": "=",
    "consumer-records-consumed-total": "consumer-fetch-manager-metrics:records-consumed-total",
    "consumer-bytes-consumed-total": "consumer-fetch-manager-metrics:bytes-consumed-total",
    "consumer-records-lag-max": "consumer-fetch-manager-metrics:records-lag-max",
    "consumer-records-lag": "consumer-fetch-manager-metrics:records-lag",
    "consumer-fetch-throttle-time-avg-seconds": "consumer-fetch-manager-metrics:fetch-throttle-time-avg",
    "consumer-fetch-throttle-time-max-seconds": "consumer-fetch-manager-metrics:fetch-throttle-time-max",
    "producer-record-send-total": "=",
    "producer-byte-total": "producer-topic-metrics:byte-total",
    "producer-buffer-total-bytes": "buffer-total-bytes",
    "producer-buffer-available-bytes": "buffer-available-bytes",
    "producer-batch-size-avg-bytes": "=",
    "producer-record-queue-time-avg-seconds": "=",
    "producer-record-queue-time-max-seconds": "=",
    "producer-produce-throttle-time-avg-seconds": "=",
    "producer-produce-throttle-time-max-seconds": "=",
    **{
        f"{client}-{name}": "="
        for client in _CLIENTS
        for name in (
            "request-total",
            "response-total",
            "outgoing-byte-total",
            "incoming-byte-total",
            "connection-count",
            "connection-close-total",
        )
    },
    **{
        f"{client}-request-latency-{name}-seconds": f"{client}-node-metrics:request-latency-{name}"
        for client in _CLIENTS
        for name in ("avg", "max")
    },
}


class _Row(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    kafka_streams: str


def served_families() -> list[Family]:
    """Return the families of a process without workers: all names, no samples."""
    process = ProcessFigures(
        state=KafkaStreamsState.CREATED,
        uptime_s=0.0,
        now_ms=0,
        restore_latency=Histogram(LATENCY_S).values,
    )
    return families([], process)


def table_of(level: str) -> Callable[[], str]:
    """Return the function that makes the table of one level."""

    def table() -> str:
        rows = [
            _Row(
                metric_name(each.name), each.kind, each.labels, each.text, kafka_streams_name(each)
            )
            for each in served_families()
            if each.name.partition("-")[0] == level
        ]
        return f"Group in Kafka Streams: `{GROUPS[level]}`.\n\n{_table(rows, 'Kafka Streams')}"

    return table


def group_table() -> str:
    return _table(
        _Row(f"tidewheel_group_{name}", "gauge", gauge.labels, gauge.text, "")
        for name, gauge in GAUGES.items()
    )


def kafka_streams_name(family: Family) -> str:
    """Return the name in Kafka Streams, as Markdown; a hyphen if it has no such metric.

    A group is named unless it is the level's own.

    >>> kafka_streams_name(Family("task-process-total", "counter", "", (), {}))
    '`process-total`'
    """
    listed = KAFKA_STREAMS_NAMES.get(family.name)
    if listed is None:
        return _OURS
    name = family.name.partition("-")[2]
    if listed == "=":
        listed = name
        for unit in _UNITS:
            listed = listed.removesuffix(f"-{unit}")
    group, _, names = listed.rpartition(":")
    shown = ", ".join(f"`{each}`" for each in names.split(", "))
    return f"`{group}`: {shown}" if group else shown


def _table(rows: Iterable[_Row], other: str = "") -> str:
    head = ["metric", "type, unit", "labels", "meaning", *([other] if other else [])]
    return "\n".join([_line(head), _line(["---"] * len(head)), *_lines(rows, bool(other))])


def _lines(rows: Iterable[_Row], has_other: bool) -> Iterator[str]:
    for row in rows:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        counted = next((unit for part, unit in _COUNTED.items() if part in row.name), "number")
        unit = _UNITS.get(row.name.rpartition("_")[2], counted)
        cells = [f"`{row.name}`", f"{row.kind}, {unit}", labels, row.text]
        yield _line([*cells, row.kafka_streams] if has_other else cells)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
