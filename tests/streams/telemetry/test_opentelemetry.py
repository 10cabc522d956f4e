"""Spans and metrics of a topology, and telemetry that fails."""

import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.streams.web.processes import until
from tests.tasks.loop.bench import Bench
from tidewheel import StreamsBuilder, StreamsConfig
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.streams.telemetry.guard import Guard, SpanEnder
from tidewheel.streams.telemetry.metering import Metering
from tidewheel.streams.telemetry.telemetry import OpenTelemetry
from tidewheel.streams.worker.application.task_factory import TaskFactory
from tidewheel.tasks.figures import Family
from tidewheel.tasks.processing.engine.graph import TaskGraph
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords
from tidewheel.tasks.processing.engine.traced_graph import TracedGraph
from tidewheel.tasks.restore.state_updater import RestoreEvent

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class _Raises:
    """Span exporter, or tracer, that fails in every way."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


@pytest.fixture
def telemetry() -> Iterator[OpenTelemetry]:
    made = OpenTelemetry("shop")
    yield made
    made.close()


def _finished(spans: InMemorySpanExporter, count: int) -> dict[str, ReadableSpan]:
    until(lambda: len(spans.get_finished_spans()) >= count)
    found = spans.get_finished_spans()
    assert len(found) == count
    return {span.name: span for span in found}


def _graph(telemetry: OpenTelemetry | None, function: Any, *, singly: bool = False) -> TaskGraph:
    builder = StreamsBuilder()
    values = builder.stream("orders", key_serde=str, value_serde=str)
    values.map_values(function, name="double").foreach(lambda key, value: None, name="shown")
    config = StreamsConfig(application_id="shop")
    (spec,) = builder.build(config).spec(config).subtopologies
    options: Any = {
        "make_sink": lambda _: None,
        "make_context": lambda _: None,
        "host": None,
        "record_by_record": singly,
    }
    if telemetry is None:
        return TaskGraph(spec, **options)
    return TracedGraph(
        spec, tracer=telemetry.tracer, task_id=str(TaskId(0, 3)), skipped=_none, **options
    )


def _none() -> int:
    return 0


def _batch(values: Sequence[str], *parents: str | None) -> RecordBatch:
    headers: Any = [
        () if parent is None else (("traceparent", parent.encode()),) for parent in parents
    ] or None
    count = len(values)
    source = SourceRecords(
        "orders", 3, list(range(7, 7 + count)), [None] * count, [None] * count, [0] * count, headers
    )
    return RecordBatch(["a"] * count, list(values), [0] * count, headers, range(count), source)


def _source(graph: TaskGraph) -> str:
    return next(name for name, node in graph.nodes.items() if node.operator is None)


def _run(graph: TaskGraph, batch: RecordBatch) -> None:
    graph.run(_source(graph), batch)


def test_a_batch_has_a_span_with_the_operators_below_it(
    spans: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    seen: list[trace.SpanContext] = []

    def double(value: str) -> str:
        seen.append(trace.get_current_span().get_span_context())
        return value * 2

    _run(_graph(telemetry, double), _batch(["x", "y"], PARENT, OTHER))
    found = _finished(spans, 3)
    batch, operator = found["process orders"], found["double"]
    assert batch.kind is SpanKind.CONSUMER
    assert batch.parent is None
    assert [f"{link.context.trace_id:032x}" for link in batch.links] == [
        PARENT.split("-")[1],
        OTHER.split("-")[1],
    ]
    assert dict(batch.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.consumer.group.name": "shop",
        "messaging.batch.message_count": 2,
        "messaging.kafka.offset": 7,
        "tidewheel.task": "0_3",
        "tidewheel.source": batch.attributes["tidewheel.source"],  # type: ignore[index] # it has some
    }
    assert operator.parent is not None
    assert operator.parent.span_id == batch.context.span_id
    assert {context.span_id for context in seen} == {operator.context.span_id}


def test_a_single_record_continues_the_trace_of_its_headers(
    spans: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    _run(_graph(telemetry, str.upper), _batch(["x"], PARENT))
    for span in _finished(spans, 3).values():
        assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]


def test_a_failing_function_marks_its_spans_without_its_text(
    spans: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    def fail(value: str) -> str:
        raise KeyError(value)

    with telemetry.tracer.batch("0_0", "source", [_batch(["secret"])], skipped=_none) as traces:
        assert traces
        with pytest.raises(KeyError), telemetry.tracer.operator("map", 1, skipped=_none):
            fail("secret")
    operator = _finished(spans, 2)["map"]
    assert operator.status.status_code is StatusCode.ERROR
    assert "secret" not in operator.to_json()


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_skipped_records_mark_their_spans(
    spans: InMemorySpanExporter,
    telemetry: OpenTelemetry,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_coroutine: bool,
) -> None:
    def fail(value: str) -> str:
        raise KeyError(value)

    async def fail_later(value: str) -> str:
        raise KeyError(value)

    builder = StreamsBuilder()
    values = builder.stream("in", key_serde=str, value_serde=str)
    values.map_values(fail_later if is_coroutine else fail, name="double").to(
        "out", value_serde=str
    )
    monkeypatch.setattr(
        "tests.tasks.loop.bench.TaskFactory", partial(TaskFactory, tracer=telemetry.tracer)
    )
    topics = {"in": 1, "out": 1}
    bench = Bench(builder.build(), topics, processing_exception_handler="continue")
    bench.send("in", "a", "secret")
    assert bench.live()
    for span in _finished(spans, 2).values():
        assert span.status.status_code is StatusCode.ERROR
        assert "secret" not in span.to_json()


def test_commits_and_restores_are_spans_that_began_before(
    spans: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    telemetry.committed(2, 1.5)
    event = RestoreEvent(
        kind="end", store="rows", topic="log", partition=4, start=0, end=9, restored=9
    )
    telemetry.restored(event, 0.5)
    found = _finished(spans, 2)
    for name, seconds in (("commit", 1.5), ("restore rows", 0.5)):
        span = found[name]
        assert span.start_time is not None
        assert span.end_time is not None
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(seconds)
        assert span.parent is None


@pytest.mark.parametrize("singly", [True, False])
def test_results_are_the_same_with_and_without_spans(
    spans: InMemorySpanExporter, telemetry: OpenTelemetry, *, singly: bool
) -> None:
    results: list[list[str]] = []
    for graph_telemetry in (None, telemetry):
        seen: list[str] = []

        def keep(value: str, seen: list[str] = seen) -> str:
            seen.append(value)
            return value

        _run(_graph(graph_telemetry, keep, singly=singly), _batch(["a", "b", "c"]))
        results.append(seen)
    assert results == [["a", "b", "c"]] * 2
    assert spans is not None


@pytest.mark.parametrize("broken", ["start_span", "attach", "end", "extract"])
def test_broken_telemetry_breaks_no_processing(
    broken: str, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = OpenTelemetry("shop")
    tracer: Any = telemetry.tracer
    if broken == "start_span":
        tracer._tracer = _Raises()
    elif broken == "end":
        monkeypatch.setattr(tracer, "_tracer", _TracerOfBadSpans())
    elif broken == "attach":
        monkeypatch.setattr("opentelemetry.context.attach", _raise)
    else:
        monkeypatch.setattr("opentelemetry.propagate.extract", _raise)
    seen: list[str] = []

    def keep(value: str) -> str:
        seen.append(value)
        return value

    _run(_graph(telemetry, keep), _batch(["x"], PARENT))
    telemetry.committed(0, 0.1)
    telemetry.close()
    assert seen == ["x"]
    assert telemetry.guard.failures
    assert spans is not None


def _raise(*_: Any, **__: Any) -> Any:
    raise RuntimeError


class _TracerOfBadSpans:
    def start_span(self, *_: Any, **__: Any) -> Any:
        return trace.INVALID_SPAN if not hasattr(self, "span") else self.span

    def __init__(self) -> None:
        span = trace.NonRecordingSpan(trace.INVALID_SPAN_CONTEXT)
        span.end = _raise  # type: ignore[method-assign] # it fails
        self.span = span


def test_an_exporter_that_hangs_delays_no_worker() -> None:
    free = threading.Event()

    class Hanging(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            assert free.wait(60)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Hanging()))
    ender = SpanEnder(Guard())
    began_s = time.monotonic()
    for _ in range(20_000):
        ender.end(provider.get_tracer("t").start_span("s"), time.time_ns())
    assert ender.lost > 0
    free.set()
    ender.close()
    assert time.monotonic() - began_s < 60


def test_figures_are_instruments_with_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    lag = 4

    def read() -> list[Family]:
        return [
            Family("task-records-lag", "gauge", "Lag", ("topic",), {("in",): lag}),
            Family("thread-process-total", "counter", "Records", ("slot",), {("0",): 9}),
        ]

    now_s = 0.0
    metering = Metering("shop", read, Guard(), lambda: now_s)
    metering.committed(0, 0.2)
    points = _points(reader)
    assert points["tidewheel.task.records_lag"] == [({"tidewheel.topic": "in"}, 4)]
    assert points["tidewheel.thread.process"] == [({"tidewheel.slot": "0"}, 9)]
    assert points["tidewheel.thread.commit.latency"] == [({"tidewheel.slot": 0}, 1)]
    lag, now_s = 5, 1.0
    assert _points(reader)["tidewheel.task.records_lag"] == [({"tidewheel.topic": "in"}, 5)]
    metering.close()
    assert "tidewheel.task.records_lag" not in _points(reader)


def _points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """Return attributes and value (of a histogram: count) by the instrument's name."""
    data = reader.get_metrics_data()
    found: dict[str, list[Any]] = {}
    for resource in () if data is None else data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    attributes = dict(point.attributes or {})
                    assert attributes.pop("messaging.consumer.group.name") == "shop"
                    value = getattr(point, "value", None)
                    number = getattr(point, "count", None) if value is None else value
                    found.setdefault(metric.name, []).append((attributes, number))
    return found


def test_a_reader_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    calls = 0

    def read() -> list[Family]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise RuntimeError
        return [Family("task-records-lag", "gauge", "Lag", (), {(): 1})]

    guard = Guard()
    Metering("shop", read, guard, lambda: 10.0)
    _points(reader)
    assert guard.failures
    assert TopicPartition("in", 0)
