"""Prometheus text of a process's figures."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from tidewheel.tasks.figures import Family

TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(application_id: str, families: Iterable[Family]) -> bytes:
    """Return the figures as text; each has the label `application`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(application_id, families))
    return generate_latest(registry)


def metric_name(family: str) -> str:
    """Return the name in Prometheus of a family.

    >>> metric_name("task-process-total")
    'tidewheel_task_process_total'
    """
    return f"tidewheel_{family.replace('-', '_')}"


class _Figures(Collector):
    def __init__(self, application_id: str, families: Iterable[Family]) -> None:
        self._application_id = application_id
        self._families = families

    def collect(self) -> Iterator[Any]:
        for family in self._families:
            labels = ("application", *family.labels)
            name = metric_name(family.name)
            metric = _KINDS[family.kind](name, family.text, labels=labels)
            for values, value in family.samples.items():
                row = (self._application_id, *values)
                if isinstance(metric, HistogramMetricFamily):
                    bounds = [*map(str, value.bounds), "+Inf"]
                    metric.add_metric(
                        row, list(zip(bounds, value.counts, strict=True)), value.total
                    )
                else:
                    metric.add_metric(row, value)
            yield metric


_KINDS: Final[dict[str, Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
