"""A worker with OpenTelemetry: spans and figures of real processing."""

from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tidewheel import StreamsBuilder

TRACE: str = "0af7651916cd43dd8448eb211c80319c"


def test_a_worker_reports_batches_operators_commits_and_figures(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", tracers.get_tracer)
    monkeypatch.setattr(metrics, "get_meter", meters.get_meter)
    topic = f"orders-{unique}"
    cluster.create({topic: 1})
    builder = StreamsBuilder()
    orders = builder.stream(topic, key_serde=str, value_serde=str)
    orders.map_values(str.upper, name="upper").group_by_key().count(store="counts")
    start_app(builder, {**config, "telemetry": "opentelemetry"})
    parent = f"00-{TRACE}-b7ad6b7169203331-01".encode()
    cluster.send(topic, [(b"a", b"x")], headers=(("traceparent", parent),))

    def names() -> set[str]:
        return {span.name for span in exporter.get_finished_spans()}

    until(lambda: {"upper", "commit", f"process {topic}"} <= names(), "the spans have ended")
    (operator,) = [span for span in exporter.get_finished_spans() if span.name == "upper"]
    assert f"{operator.context.trace_id:032x}" == TRACE
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: metric.data.data_points
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert [getattr(point, "value", 0) for point in found["tidewheel.task.process"]] == [1]
    assert sum(getattr(point, "count", 0) for point in found["tidewheel.thread.commit.latency"]) > 0
