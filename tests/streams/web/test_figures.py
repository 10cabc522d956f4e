"""Figures of a process as Prometheus text."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.streams.web.processes import task, thread
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.streams.web.prometheus import metrics_text
from tidewheel.streams.worker import figures
from tidewheel.streams.worker.application.application_state import KafkaStreamsState
from tidewheel.streams.worker.figures import ProcessFigures, families
from tidewheel.streams.worker.process_view import RestoreTimes
from tidewheel.tasks.figures import LATENCY_S, Histogram, NodeCounts
from tidewheel.tasks.processing.engine.drops import Drop
from tidewheel.tasks.restore.state_updater import RestoreEvent
from tidewheel.tasks.task.sink_writer import SinkFigures

PROCESS = ProcessFigures(
    state=KafkaStreamsState.RUNNING,
    uptime_s=3.5,
    now_ms=100_000,
    restore_latency=Histogram(LATENCY_S).values,
)


def samples(threads: list[Any]) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and its labels' values, in the order of the labels' names."""
    text = metrics_text("shop", families(threads, PROCESS)).decode()
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("application") == "shop"
            found[sample.name, *(labels[name] for name in sorted(labels))] = sample.value
    return found


def test_a_worker_is_labelled_by_its_slot_and_its_tasks() -> None:
    two = thread(2, {TaskId(0, 1): task(process_total=7)}, {TopicPartition("in", 1): 3})
    two.worker.metrics.processed = 9
    two.worker.metrics.errors.add(skipped=1, dead_letters=2)
    two.worker.metrics.produced, two.worker.metrics.changelog_records = 5, 6
    found = samples([two])
    assert found["tidewheel_thread_process_total", "2"] == 9
    assert found["tidewheel_thread_record_send_total", "output", "2"] == 5
    assert found["tidewheel_thread_record_send_total", "changelog", "2"] == 6
    assert found["tidewheel_thread_dead_letters_total", "2"] == 2
    assert found["tidewheel_thread_skipped_records_total", "2"] == 1
    assert found["tidewheel_thread_tasks", "active", "2"] == 1
    assert found["tidewheel_task_process_total", "2", "0_1"] == 7
    assert found["tidewheel_task_records_lag", "1", "2", "in"] == 3


def test_rows_are_counted_by_store() -> None:
    worker = thread(1, {}, {})
    worker.worker.metrics.puts.update(counts=3)
    worker.worker.metrics.puts.update(counts=2, rows=1)
    found = samples([worker])
    assert found["tidewheel_store_put_total", "1", "counts"] == 5
    assert found["tidewheel_store_put_total", "1", "rows"] == 1


def test_commit_durations_are_a_histogram() -> None:
    worker = thread(0, {}, {})
    for seconds in (0.004, 0.2, 100.0):
        worker.worker.metrics.commit_latency.observe(seconds)
    found = samples([worker])
    name = "tidewheel_thread_commit_latency_seconds"
    assert found[f"{name}_bucket", "0.005", "0"] == 1
    assert found[f"{name}_bucket", "0.25", "0"] == 2
    assert found[f"{name}_bucket", "+Inf", "0"] == found[f"{name}_count", "0"] == 3
    assert found[f"{name}_sum", "0"] == pytest.approx(100.204)


def test_drops_are_counted_by_task_operator_and_reason() -> None:
    dropping = task()
    dropping.counters = SimpleNamespace(drops={("JOIN-1", "null key"): Drop(4, None)}, nodes={})
    found = samples([thread(0, {TaskId(0, 0): dropping}, {})])
    assert found["tidewheel_node_dropped_records_total", "JOIN-1", "null key", "0", "0_0"] == 4


def test_nodes_have_counts_and_the_latency_of_the_last_minute() -> None:
    counted, late, idle = NodeCounts("suppression-emit-total"), NodeCounts(), NodeCounts()
    counted.processed, counted.emitted = 9, 2
    late.latency.observe(90_000, [88_000, 89_000])
    idle.latency.observe(40_000, [1])
    busy = task()
    busy.counters = SimpleNamespace(drops={}, nodes={"S": counted, "SINK": late, "OLD": idle})
    found = samples([thread(1, {TaskId(0, 2): busy}, {})])
    assert found["tidewheel_node_process_total", "S", "1", "0_2"] == 9
    emitted = {n: v for n, v in found.items() if n[0] == "tidewheel_node_suppression_emit_total"}
    assert emitted == {("tidewheel_node_suppression_emit_total", "S", "1", "0_2"): 2}
    latency = "tidewheel_node_record_e2e_latency"
    assert found[f"{latency}_avg_seconds", "SINK", "1", "0_2"] == 1.5
    assert found[f"{latency}_min_seconds", "SINK", "1", "0_2"] == 1
    assert found[f"{latency}_max_seconds", "SINK", "1", "0_2"] == 2
    assert (f"{latency}_max_seconds", "OLD", "1", "0_2") not in found


def test_sinks_outside_kafka_have_figures() -> None:
    writing = task()
    writing.figures.sink = sink = SinkFigures()
    sink.rows, sink.refused, sink.retries, sink.problem = 5, 1, 2, "away"
    sink.flush_latency.observe(0.2)
    found = samples([thread(0, {TaskId(1, 0): writing, TaskId(0, 0): task()}, {})])
    assert found["tidewheel_task_sink_rows_total", "0", "1_0"] == 5
    assert found["tidewheel_task_sink_refused_rows_total", "0", "1_0"] == 1
    assert found["tidewheel_task_sink_retries_total", "0", "1_0"] == 2
    assert found["tidewheel_task_sink_failing", "0", "1_0"] == 1
    assert found["tidewheel_task_sink_flush_latency_seconds_count", "0", "1_0"] == 1
    assert ("tidewheel_task_sink_rows_total", "0", "0_0") not in found


def test_one_state_is_set() -> None:
    found = samples([])
    assert found["tidewheel_client_state", "RUNNING"] == 1
    assert sum(n for name, n in found.items() if name[0] == "tidewheel_client_state") == 1
    assert found["tidewheel_client_uptime_seconds",] == 3.5


def test_the_number_of_samples_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "SAMPLES_MAX", 10)
    tasks = {TaskId(0, number): task() for number in range(25)}
    found = samples([thread(0, tasks, {})])
    assert sum(name[0] == "tidewheel_task_process_total" for name in found) == 10
    kinds = len(figures._OF_TASK)
    assert found["tidewheel_client_left_out_samples",] == 15 * kinds


def test_names_are_those_that_prometheus_accepts_and_each_has_one_family() -> None:
    found = families([thread(0, {}, {})], PROCESS)
    names = [family.name for family in found]
    assert len(set(names)) == len(names)
    for family in found:
        assert re.fullmatch(
            r"(client|thread|task|node|store|consumer|producer)(-[a-z0-9]+)+", family.name
        )
        assert family.name.endswith("-total") is (family.kind == "counter")


def test_restores_are_timed_from_start_to_end() -> None:
    now_s = 10.0
    times = RestoreTimes(lambda: now_s)

    def event(kind: Any, partition: int = 0) -> RestoreEvent:
        return RestoreEvent(
            kind=kind, store="rows", topic="t", partition=partition, start=0, end=9, restored=9
        )

    times.record(event("end"))  # of a restore that began before
    times.record(event("start"))
    times.record(event("start", 1))
    now_s = 12.0
    times.record(event("batch"))
    times.record(event("end"))
    times.record(event("suspended", 1))
    assert (times.latency.values.counts[-1], times.latency.values.total) == (1, 2.0)
