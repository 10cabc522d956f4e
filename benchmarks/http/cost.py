"""Throughput with metrics, and with telemetry, relative to none: in turns, in one run."""

import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from typing import Any

from benchmarks.http.work import Feed, make_topic, running, wait_for
from tidewheel import KafkaStreams

SCRAPE_S = 1.0
#: Settings of each way to run; the first is the base.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "off": {},
    "http": {"http_port": 0},
    "opentelemetry": {"telemetry": "opentelemetry"},
}


def measure(servers: str, records: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each way: medians, and the median of the ratios to "off" in its round.

    Processor time is that of the whole process. It swings less than the rate, in which the broker's
    work on the same cores shows.
    """
    topic = make_topic(servers)
    feed = Feed(servers, topic)
    feed.send(records)
    feed.flush()
    ways = [way for way in WAYS if way != "opentelemetry" or find_spec("opentelemetry.sdk")]
    if "opentelemetry" in ways:
        _set_providers()
    rates: dict[str, list[float]] = {way: [] for way in ways}
    costs: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way in ways if number % 2 else reversed(ways):
            rate, cost_us = _rate(servers, topic, records, WAYS[way])
            if number:  # the first round warms up
                rates[way].append(rate)
                costs[way].append(cost_us)
    return [
        {
            "way": way,
            "records_per_s": round(statistics.median(rates[way])),
            "ratio": _ratio(rates[way], rates["off"]),
            "processor_us_per_record": round(statistics.median(costs[way]), 3),
            # Less time is better: the inverse can be read as the other ratio.
            "ratio_by_processor_time": _ratio(costs["off"], costs[way]),
            "rounds": rounds,
        }
        for way in ways
    ]


def _ratio(values: list[float], bases: list[float]) -> float:
    ratios = (value / base for value, base in zip(values, bases, strict=True))
    return round(statistics.median(ratios), 3)


def _rate(
    servers: str, topic: str, records: int, settings: Mapping[str, Any]
) -> tuple[float, float]:
    """Return records per second, and microseconds of processor time for a record."""
    with running(servers, topic, **settings) as app, _scraped(app):
        wait_for(app, 1)
        first, begin_s = app.metrics()["process-total"], time.perf_counter()
        worked_s = time.process_time()
        wait_for(app, records)
        count = records - first
        cost_us = 1e6 * (time.process_time() - worked_s) / count
        return float(count / (time.perf_counter() - begin_s)), float(cost_us)


@contextmanager
def _scraped(app: KafkaStreams) -> Iterator[None]:
    """Read the metrics every second, as Prometheus would at most."""
    over = threading.Event()

    def scrape(address: str) -> None:
        while not over.wait(SCRAPE_S):
            connection = HTTPConnection(address, timeout=30)
            connection.request("GET", "/metrics")
            assert connection.getresponse().read()
            connection.close()

    thread = None
    if app.http_url is not None:
        address = app.http_url.removeprefix("http://")
        thread = threading.Thread(target=scrape, args=(address,))
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread is not None:
            thread.join()


def _set_providers() -> None:
    """Set providers as in production: batches to an exporter that drops them, 1 % of traces."""
    from opentelemetry import metrics, trace  # noqa: PLC0415 - it may be missing
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: PLC0415 - as above
        InMemorySpanExporter,
    )
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased  # noqa: PLC0415 - as above

    tracers = TracerProvider(sampler=TraceIdRatioBased(0.01))
    tracers.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider())
