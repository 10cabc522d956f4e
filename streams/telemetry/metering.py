"""Figures of a process as OpenTelemetry instruments."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from tidewheel.streams.telemetry.guard import Guard
from tidewheel.streams.telemetry.tracing import NAME
from tidewheel.tasks.figures import LATENCY_S, Family

#: Seconds for which figures serve all instruments of one collection.
_FRESH_S: Final = 0.5
_UNITS: Final = {"seconds": "s", "bytes": "By"}


class Metering:
    """Instruments of a process: observed figures, and histograms of commits and restores."""

    def __init__(
        self,
        application_id: str,
        read: Callable[[], list[Family]],
        guard: Guard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._attributes = {"messaging.consumer.group.name": application_id}
        self._read = read
        self._guard = guard
        self._clock = clock
        self._lock = threading.Lock()
        self._figures: Mapping[str, Family] = {}
        self._read_s = -_FRESH_S
        self._is_closed = False
        meter = metrics.get_meter(NAME)
        for family in read():
            if family.kind == "histogram":
                continue
            make = (
                meter.create_observable_counter
                if family.kind == "counter"
                else meter.create_observable_gauge
            )
            make(
                instrument_name(family),
                callbacks=[partial(self._observe, family.name)],
                unit=_unit(family.name),
                description=family.text,
            )
        self._commits = meter.create_histogram(
            "tidewheel.thread.commit.latency",
            unit="s",
            description="Duration of commits",
            explicit_bucket_boundaries_advisory=LATENCY_S,
        )
        self._restores = meter.create_histogram(
            "tidewheel.client.restore.latency",
            unit="s",
            description="Time from the start to the end of one store's restore",
            explicit_bucket_boundaries_advisory=LATENCY_S,
        )

    def close(self) -> None:
        """Report nothing any more: instruments can't be removed."""
        self._is_closed = True

    def committed(self, slot: int, took_s: float) -> None:
        """Record the duration of a commit."""
        try:
            self._commits.record(took_s, {**self._attributes, "tidewheel.slot": slot})
        except Exception as error:  # noqa: BLE001 - logged; the worker continues
            self._guard.failed(error)

    def restored(self, took_s: float) -> None:
        """Record the duration of a restore."""
        try:
            self._restores.record(took_s, self._attributes)
        except Exception as error:  # noqa: BLE001 - logged; the worker continues
            self._guard.failed(error)

    def _observe(self, name: str, _: CallbackOptions) -> Iterable[Observation]:
        if self._is_closed:
            return []
        try:
            family = self._fresh().get(name)
        except Exception as error:  # noqa: BLE001 - logged; the others continue
            self._guard.failed(error)
            return []
        if family is None:
            return []
        keys = [f"tidewheel.{label}" for label in family.labels]
        return [
            Observation(value, {**self._attributes, **dict(zip(keys, labels, strict=True))})
            for labels, value in family.samples.items()
        ]

    def _fresh(self) -> Mapping[str, Family]:
        with self._lock:
            now_s = self._clock()
            if now_s - self._read_s >= _FRESH_S:
                self._figures = {family.name: family for family in self._read()}
                self._read_s = now_s
            return self._figures


def instrument_name(family: Family) -> str:
    """Return a family's name in OpenTelemetry, without "total" and its unit.

    >>> instrument_name(Family("task-process-total", "counter", "", (), {}))
    'tidewheel.task.process'
    >>> instrument_name(Family("thread-longest-call-seconds", "gauge", "", (), {}))
    'tidewheel.thread.longest_call'
    """
    level, _, name = family.name.partition("-")
    for ending in ("-total", *(f"-{unit}" for unit in _UNITS)):
        name = name.removesuffix(ending)
    return f"tidewheel.{level}.{name.replace('-', '_')}"


def _unit(name: str) -> str:
    return _UNITS.get(name.rpartition("-")[2], "1")
