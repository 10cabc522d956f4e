"""View of a process for its web server and its telemetry."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidewheel.rebalance.protocol.group import Group
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.worker.application.application import Application
from tidewheel.streams.worker.application.application_state import KafkaStreamsState
from tidewheel.streams.worker.figures import ProcessFigures, families
from tidewheel.streams.worker.metrics import TaskInfo
from tidewheel.streams.worker.stream_thread import StreamThread
from tidewheel.tasks.figures import LATENCY_S, Family, Histogram
from tidewheel.tasks.restore.state_updater import RestoreEvent


class RestoreTimes:
    """Durations of restores; several restoring threads report.

    `on_end` is called with each restore that ended, and its seconds.
    """

    def __init__(
        self,
        monotonic_s: Callable[[], float],
        on_end: Callable[[RestoreEvent, float], None] | None = None,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._on_end = on_end
        self._lock = threading.Lock()
        self._began_s: dict[tuple[str, int], float] = {}
        self.latency = Histogram(LATENCY_S)

    def record(self, event: RestoreEvent) -> None:
        place = (event.store, event.partition)
        now_s = self._monotonic_s()
        took_s: float | None = None
        with self._lock:
            if event.kind == "start":
                self._began_s[place] = now_s
            elif event.kind in ("end", "suspended"):
                began_s = self._began_s.pop(place, math.inf)
                if event.kind == "end" and began_s <= now_s:
                    self.latency.observe(now_s - began_s)
                    took_s = now_s - began_s
        if took_s is not None and self._on_end is not None:
            self._on_end(event, took_s)


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """View of a `KafkaStreams` for `tidewheel.web` and telemetry; any thread may call it.

    Attributes:
        group: Reads the group log; raises `StreamsError` without a group, or if it can't be read.
        metrics: `KafkaStreams.metrics`.
    """

    application: Application
    threads: Callable[[], Sequence[StreamThread]]
    state: Callable[[], KafkaStreamsState]
    uptime_s: Callable[[], float]
    tasks: Callable[[], Sequence[TaskInfo]]
    metrics: Callable[[], dict[str, Any]]
    group: Callable[[], Group]
    restore_times: RestoreTimes

    @property
    def config(self) -> StreamsConfig:
        return self.application.config

    @property
    def slots(self) -> list[int]:
        return [thread.slot for thread in self.threads() if thread.slot is not None]

    def families(self) -> list[Family]:
        process = ProcessFigures(
            state=self.state(),
            uptime_s=self.uptime_s(),
            now_ms=self.application.clock.now_ms(),
            restore_latency=self.restore_times.latency.values,
        )
        return families(self.threads(), process)
