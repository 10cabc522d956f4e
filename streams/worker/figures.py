"""Figures of a process for Prometheus and OpenTelemetry, under Kafka Streams' names.

Workers count anyway; all here is read by the thread that asks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.rocksdb.task_database import FIGURES, TaskDatabase
from tidewheel.streams.kafka.client.statistics import ClientStatistics
from tidewheel.streams.worker.application.application_state import KafkaStreamsState
from tidewheel.streams.worker.client_figures import client_families
from tidewheel.streams.worker.stream_thread import StreamThread
from tidewheel.tasks.calls.call_watch import longest_ms
from tidewheel.tasks.figures import EMISSIONS, Family, HistogramValues, Kind, Labels, LatencyValues
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.restore.state_updater import StateUpdater
from tidewheel.tasks.task.sink_writer import SinkFigures
from tidewheel.tasks.task.state_manager import StateManager

#: Most samples of one family; further ones are counted in `client-left-out-samples`.
SAMPLES_MAX: Final = 5_000

_UNSLOTTED: Final = ""


class ProcessFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a process, besides those of its threads."""

    state: KafkaStreamsState
    uptime_s: float
    now_ms: int
    restore_latency: HistogramValues


def families(threads: Sequence[StreamThread], process: ProcessFigures) -> list[Family]:
    """Return all families, each with at most `SAMPLES_MAX` samples."""
    workers = [(_slot(thread), thread.worker) for thread in threads if thread.worker is not None]
    found = [
        *_client(threads, process),
        *_threads(workers),
        *_tasks(workers),
        *_nodes(workers, process.now_ms),
        *_stores(workers),
        *_global_stores(threads),
        *client_families(_statistics(threads)),
    ]
    left_out = sum(max(len(family.samples) - SAMPLES_MAX, 0) for family in found)
    limited = [
        family
        if len(family.samples) <= SAMPLES_MAX
        else family._replace(samples=dict(sorted(family.samples.items())[:SAMPLES_MAX]))
        for family in found
    ]
    text = "Samples left out because a figure has too many labels"
    return [*limited, Family("client-left-out-samples", "gauge", text, (), {(): left_out})]


def _slot(thread: StreamThread) -> str:
    return _UNSLOTTED if thread.slot is None else str(thread.slot)


def _statistics(threads: Sequence[StreamThread]) -> list[tuple[str, ClientStatistics]]:
    lives = [(_slot(thread), thread.life) for thread in threads]
    return [
        (slot, life.statistics)
        for slot, life in lives
        if life is not None and life.statistics is not None
    ]


def _client(threads: Sequence[StreamThread], process: ProcessFigures) -> Iterator[Family]:
    states = {(state.value,): int(state is process.state) for state in KafkaStreamsState}
    yield Family("client-state", "gauge", "1 for the state it is in", ("state",), states)
    alive = sum(thread.error is None for thread in threads)
    yield Family("client-alive-stream-threads", "gauge", "Worker threads", (), {(): alive})
    yield Family(
        "client-uptime-seconds", "gauge", "Time since the start", (), {(): process.uptime_s}
    )
    yield Family(
        "client-restore-latency-seconds",
        "histogram",
        "Time from the start to the end of one store's restore",
        (),
        {(): process.restore_latency},
    )


#: Name, kind, text, and value of each figure of a worker.
_OF_WORKER: Final[tuple[tuple[str, Kind, str, Callable[[StreamWorker], Any]], ...]] = (
    ("poll-records-total", "counter", "Records read", lambda worker: worker.metrics.consumed),
    (
        "process-total",
        "counter",
        "Records processed",
        lambda worker: worker.metrics.finished(list(worker.tasks.values())),
    ),
    ("commit-total", "counter", "Commits", lambda worker: worker.metrics.commits),
    (
        "commit-latency-seconds",
        "histogram",
        "Duration of commits",
        lambda worker: worker.metrics.commit_latency.values,
    ),
    (
        "rolled-back-total",
        "counter",
        "Rollbacks after a transaction of unknown outcome",
        lambda worker: worker.metrics.rolled_back,
    ),
    (
        "skipped-records-total",
        "counter",
        "Records that exception handlers skipped",
        lambda worker: worker.metrics.errors.skipped,
    ),
    (
        "dead-letters-total",
        "counter",
        "Records written to a dead-letter topic",
        lambda worker: worker.metrics.errors.dead_letters,
    ),
    (
        "longest-call-seconds",
        "gauge",
        "Longest call of user code in progress, 0 below a second",
        lambda worker: longest_ms(worker.call_watch) / 1000,
    ),
)
_OF_UPDATER: Final[tuple[tuple[str, Kind, str, Callable[[StateUpdater], Any]], ...]] = (
    (
        "restore-total",
        "counter",
        "Changelog records and snapshot rows restored",
        lambda updater: updater.restored_records,
    ),
    (
        "restore-remaining-records",
        "gauge",
        "Offsets that tasks must restore before they run",
        lambda updater: updater.remaining_records,
    ),
    (
        "restore-remaining-seconds",
        "gauge",
        "Estimated time of these restores, -1 while unknown",
        lambda updater: updater.restore_remaining_s,
    ),
    (
        "restore-waits",
        "gauge",
        "Restores without progress",
        lambda updater: len(updater.waits),
    ),
)


def _threads(workers: Sequence[tuple[str, StreamWorker]]) -> Iterator[Family]:
    for name, kind, text, value_of in _OF_WORKER:
        values = {(slot,): value_of(worker) for slot, worker in workers}
        yield Family(f"thread-{name}", kind, text, ("slot",), values)
    for name, kind, text, figure_of in _OF_UPDATER:
        values = {
            (slot,): figure_of(updater)
            for slot, worker in workers
            if (updater := worker.updater) is not None
        }
        yield Family(f"thread-{name}", kind, text, ("slot",), values)
    sent: dict[Labels, int] = {}
    for slot, worker in workers:
        sent[slot, "output"] = worker.metrics.produced
        sent[slot, "changelog"] = worker.metrics.changelog_records
    text = "Records sent, as of the last commit"
    yield Family("thread-record-send-total", "counter", text, ("slot", "kind"), sent)
    counts: dict[Labels, int] = {}
    for slot, worker in workers:
        roles = ["active"] * len(worker.tasks) + [
            copy.role for copy in list(worker.copies.values())
        ]
        for role in ("active", "standby", "learner"):
            counts[slot, role] = roles.count(role)
    yield Family("thread-tasks", "gauge", "Tasks by role", ("slot", "role"), counts)


#: Figure of `TaskCounts.metrics`, kind and text.
_OF_TASK: Final[tuple[tuple[str, Kind, str], ...]] = (
    ("process-total", "counter", "Records processed"),
    ("dropped-records-total", "counter", "Records that a rule dropped (null keys, late records)"),
    ("skipped-records-total", "counter", "Records that exception handlers skipped"),
    ("punctuate-total", "counter", "Punctuations"),
    ("enforced-processing-total", "counter", "Records processed without waiting for other inputs"),
    ("buffered-records", "gauge", "Records fetched and not processed, also by key ranges"),
)


def _tasks(workers: Sequence[tuple[str, StreamWorker]]) -> Iterator[Family]:
    figures = {
        (slot, str(task_id)): task.figures.metrics()
        for slot, worker in workers
        for task_id, task in list(worker.tasks.items())
    }
    for name, kind, text in _OF_TASK:
        values = {labels: of_task[name] for labels, of_task in figures.items()}
        yield Family(f"task-{name}", kind, text, ("slot", "task"), values)
    yield from _sinks(workers)
    yield Family(
        "task-records-lag",
        "gauge",
        "Offsets from the processed position to the end of the input",
        ("slot", "topic", "partition"),
        {
            (slot, at.topic, str(at.partition)): lag
            for slot, worker in workers
            for at, lag in worker.lags().items()
        },
    )
    yield Family(
        "task-standby-lag",
        "gauge",
        "Offsets that a copy is behind its changelogs; -1 while unknown",
        ("slot", "task", "role"),
        {
            (slot, str(copy.task_id), copy.role): copy.status().lag
            for slot, worker in workers
            for copy in list(worker.copies.values())
        },
    )


_OF_SINK: Final[tuple[tuple[str, Kind, str, Callable[[SinkFigures], Any]], ...]] = (
    ("rows-total", "counter", "Rows flushed outside Kafka", lambda sink: sink.rows),
    ("refused-rows-total", "counter", "Rows that the outside refused", lambda sink: sink.refused),
    (
        "retries-total",
        "counter",
        "Failed attempts to write outside Kafka",
        lambda sink: sink.retries,
    ),
    (
        "failing",
        "gauge",
        "1 while a sink fails and tries again",
        lambda sink: int(bool(sink.problem)),
    ),
    (
        "flush-latency-seconds",
        "histogram",
        "Duration of flushes outside Kafka",
        lambda sink: sink.flush_latency.values,
    ),
)


def _sinks(workers: Sequence[tuple[str, StreamWorker]]) -> Iterator[Family]:
    sinks = {
        (slot, str(task_id)): task.figures.sink
        for slot, worker in workers
        for task_id, task in list(worker.tasks.items())
        if task.figures.sink is not None
    }
    for name, kind, text, value_of in _OF_SINK:
        values = {labels: value_of(sink) for labels, sink in sinks.items()}
        yield Family(f"task-sink-{name}", kind, text, ("slot", "task"), values)


#: Figure, text, and value of each latency.
_LATENCIES: Final[tuple[tuple[str, str, Callable[[LatencyValues], float]], ...]] = (
    ("avg", "Average", lambda latency: latency.average),
    ("min", "Shortest", lambda latency: latency.least),
    ("max", "Longest", lambda latency: latency.most),
)


def _nodes(workers: Sequence[tuple[str, StreamWorker]], now_ms: int) -> Iterator[Family]:
    counters = {
        (slot, str(task_id)): task.counters
        for slot, worker in workers
        for task_id, task in list(worker.tasks.items())
    }
    yield Family(
        "node-dropped-records-total",
        "counter",
        "Records that an operator dropped, by reason",
        ("slot", "task", "node", "reason"),
        {
            (*labels, node, reason): drop.count
            for labels, of_task in counters.items()
            for (node, reason), drop in of_task.drops.items()
        },
    )
    nodes = {
        (*labels, node): counts
        for labels, of_task in counters.items()
        for node, counts in of_task.nodes.items()
    }
    of_node = ("slot", "task", "node")
    processed = {labels: counts.processed for labels, counts in nodes.items()}
    text = "Records that arrived at a node"
    yield Family("node-process-total", "counter", text, of_node, processed)
    for name in EMISSIONS:
        emitted = {
            labels: counts.emitted for labels, counts in nodes.items() if counts.emission == name
        }
        yield Family(f"node-{name}", "counter", _EMISSION_TEXTS[name], of_node, emitted)
    latencies = {
        labels: values
        for labels, counts in nodes.items()
        if (values := counts.latency.values(now_ms)) is not None
    }
    for name, adjective, value_of in _LATENCIES:
        yield Family(
            f"node-record-e2e-latency-{name}-seconds",
            "gauge",
            f"{adjective} time from a record's timestamp to its arrival, over the last 30 to 60 s",
            of_node,
            {labels: value_of(values) / 1000 for labels, values in latencies.items()},
        )


_EMISSION_TEXTS: Final = {
    "suppression-emit-total": "Rows that suppress emitted",
    "emitted-records-total": "Final results of windows that closed",
}
_BYTES: Final = {
    "block-cache-capacity",
    "block-cache-usage",
    "cur-size-all-mem-tables",
    "estimate-table-readers-mem",
    "live-sst-files-size",
    "size-all-mem-tables",
    "total-sst-files-size",
}
#: Figures of the cache that all databases of a process share: their sum has no meaning.
_SHARED: Final = {"block-cache-capacity", "block-cache-usage"}


def _stores(workers: Sequence[tuple[str, StreamWorker]]) -> Iterator[Family]:
    """Yield RocksDB's figures: sums over the tasks, or the copies of a role, of each store."""
    puts: dict[Labels, int] = {
        (slot, store): count
        for slot, worker in workers
        for store, count in list(worker.metrics.puts.items())
    }
    text = "Rows that commits wrote, the last one of each key"
    yield Family("store-put-total", "counter", text, ("slot", "store"), puts)
    totals: dict[str, dict[Labels, int]] = {name: {} for name in FIGURES}
    for slot, worker in workers:
        stores = [("active", task.stores) for task in list(worker.tasks.values())]
        stores += [(copy.role, copy.task.stores) for copy in list(worker.copies.values())]
        for role, store, figures in _databases(stores):
            for name, value in figures.items():
                labels = () if name in _SHARED else (slot, role, store)
                values = totals[name]
                values[labels] = value if name in _SHARED else values.get(labels, 0) + value
    for name, text in FIGURES.items():
        unit = "-bytes" if name in _BYTES else ""
        level = "client" if name in _SHARED else "store"
        labels = () if name in _SHARED else ("slot", "role", "store")
        yield Family(f"{level}-{name}{unit}", "gauge", text, labels, totals[name])


def _databases(
    stores: Iterable[tuple[str, StateManager]],
) -> Iterator[tuple[str, str, dict[str, int]]]:
    for role, manager in stores:
        for store in manager.specs:
            # A task that closes meanwhile has no figures.
            with suppress(KeyError, StreamsError):
                database = manager.database(store)
                if isinstance(database, TaskDatabase):
                    yield role, store, database.figures(store)


def _global_stores(threads: Sequence[StreamThread]) -> Iterator[Family]:
    lives = [thread.life.globals for thread in threads if thread.life is not None]
    figures = next((globals_.metrics() for globals_ in lives if globals_ is not None), None)
    values = {} if figures is None else {(): figures["restore-remaining-records-total"]}
    text = "Offsets that global stores are behind their topics"
    yield Family("client-global-restore-remaining-records", "gauge", text, (), values)


def position_of(worker: StreamWorker, task_id: TaskId) -> dict[TopicPartition, int]:
    """Return the committed offsets of a task's inputs, whose rows its stores have."""
    task = worker.tasks.get(task_id)
    committed = dict(worker.metrics.committed)
    inputs = () if task is None else task.inputs
    return {at: committed[at].offset for at in inputs if at in committed}
