"""Tidewheel's program of the suite `backfill`: computes a job's state by Spark, and prints figures.

The topologies are those of the suite `throughput`; `master` has the cores. It prints one line of
JSON. Seconds and processor time are those of the call, without Spark's own start.
"""

import json
import sys
import time
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

import psutil

from benchmarks.peers.tidewheel.throughput import topology
from tidewheel import StreamsConfig
from tidewheel.bulk import backfill
from tidewheel.streams.bulk.driver import BulkProgress, bulk_session
from tidewheel.streams.bulk.loading import BulkStep

LOOK_S = 0.1


class Phases:
    """Seconds of each pass and of each step of the publication."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._step = "plan"
        self._since_s = time.monotonic()

    def on_progress(self, progress: BulkProgress) -> None:
        self._add(progress.step.split(" of ")[0])

    def on_step(self, step: BulkStep) -> None:
        self.end()
        self._step = step.phase

    def end(self) -> None:
        self._add(self._step)

    def _add(self, name: str) -> None:
        now_s = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now_s - self._since_s
        self._since_s = now_s


class Usage(Thread):
    """Samples the processor time and the memory of this process and its descendants.

    Spark's daemon does not collect the times of Python processes that have ended, so the last
    sample of each counts.

    Attributes:
        bytes_max: Resident memory of the executors' Python processes, of all at one moment.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes_max = 0
        self._processor_s: dict[tuple[int, float], float] = {}
        self._ending = Event()

    @property
    def processor_s(self) -> float:
        return sum(self._processor_s.values())

    def sample(self) -> None:
        here, used = psutil.Process(), 0
        for process in (here, *here.children(recursive=True)):
            try:
                with process.oneshot():
                    at = process.pid, process.create_time()
                    times = process.cpu_times()
                    self._processor_s[at] = times.user + times.system
                    if process != here and process.name().startswith("python"):
                        used += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue  # ended since the listing
        self.bytes_max = max(self.bytes_max, used)

    def __enter__(self) -> Self:
        self.sample()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        self.join()
        self.sample()

    def run(self) -> None:
        while not self._ending.wait(LOOK_S):
            self.sample()


def main(parameters: dict[str, str]) -> None:
    job = topology({**parameters, "cache_bytes": "0"})
    config = StreamsConfig(
        application_id=parameters["application_id"],
        bootstrap_servers=parameters["bootstrap_servers"],
        state_dir=parameters["state_dir"],
        statestore_cache_max_bytes=0,
    )
    begin_s = time.monotonic()
    with bulk_session(None, what="benchmark", master=parameters["master"]) as spark:
        up_s, phases = time.monotonic(), Phases()
        with Usage() as usage:
            used_s = usage.processor_s
            report = backfill(
                job,
                config,
                outputs="discard",
                accept=["retention"],  # the input's times are long past
                spark=spark,
                on_progress=phases.on_progress,
                on_step=phases.on_step,
            )
        phases.end()
        result: dict[str, Any] = {
            "seconds": time.monotonic() - up_s,
            "spark_start_s": up_s - begin_s,
            "processor_s": usage.processor_s - used_s,
            "rss_mib_max": usage.bytes_max / 2**20,
            "phases_s": {name: round(each, 3) for name, each in phases.seconds.items()},
            "stores": dict(report.stores),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
