"""Tidewheel's program of the job beside_running_task: tasks count while others are restored.

Its own arguments are:

- `load_topic`, the counted input, with `load_records` (missing if it grows);
- `beside`: `restore`, `nothing`, or `burner`, which runs unrelated processes that use as much
  processor time as the restore;
- `window_s`, the duration of the latter two;
- `helpers_s` and `rest_s`, for the burner: processor seconds of the restore's helpers, and of
  brokers and worker during the restore.

It sums the restored rows and prints one line of JSON.
"""

import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Generator
from threading import Event
from typing import Any

import psutil

from benchmarks.peers.tidewheel.restore import content
from tidewheel import KafkaStreams, RestoreEvent, Serdes, StreamsBuilder, StreamsConfig, Topology

TIMEOUT_S = 600
NICENESS = 5
#: A worker's first commits take longer in any case: pauses are measured after them.
SETTLING_S = 2.0

#: Takes a share of one core for some seconds: argv is the share, the seconds and the niceness.
BURNER = """
import os, sys, time
os.nice(int(sys.argv[3]))
share, begin = float(sys.argv[1]), time.monotonic()
while (past := time.monotonic() - begin) < float(sys.argv[2]):
    if time.process_time() < share * past:
        sum(range(20_000))
    else:
        time.sleep(0.002)
"""


class Batches:
    """Times and sizes of processed batches; the machine's busy time at the first."""

    def __init__(self) -> None:
        self.times: list[tuple[float, int]] = []
        self.busy_s = 0.0

    def note(self, values: list[bytes]) -> list[bytes]:
        self.busy_s = self.busy_s or busy_s()
        self.times.append((time.monotonic(), len(values)))
        return values

    def figures(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return the rate between two times, and the longest pause after settling."""
        inside = [batch for batch in self.times if begin_s <= batch[0] <= end_s]
        settled_s = begin_s + min(SETTLING_S, (end_s - begin_s) / 4)
        moments = [settled_s, *(at_s for at_s, _ in inside if at_s > settled_s), end_s]
        pause_s = max(after - before for before, after in itertools.pairwise(moments))
        records = sum(count for _, count in inside)
        return {
            "records_per_s": records / (end_s - begin_s),
            "pause_ms": pause_s * 1000,
            "window_s": end_s - begin_s,
        }


def topology(load: str, input_topic: str | None, batches: Batches) -> Topology:
    """Count the load's keys; with a second input keep its last values, which are restored."""
    builder = StreamsBuilder()
    stream = builder.stream(load, key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
    stream.map_values_batch(batches.note).group_by_key(value_serde=Serdes.bytes()).count(
        store="counts"
    )
    if input_topic is not None:
        other = builder.stream(input_topic, key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
        other.group_by_key().reduce(lambda _, value: value, store="table")
    return builder.build()


def busy_s() -> float:
    """Return the seconds that all processors together were busy since boot."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0) - getattr(times, "steal", 0))


class Restoring:
    def __init__(self, partitions: int) -> None:
        self._left = partitions
        self.begin_s = self.end_s = self.busy_s = self.end_busy_s = 0.0
        self.done = Event()

    def on_restore(self, event: RestoreEvent) -> None:
        if event.store != "table":
            return
        if event.kind == "start" and not self.begin_s:
            self.begin_s, self.busy_s = time.monotonic(), busy_s()
        if event.kind == "end":
            self._left -= 1
            self.end_s, self.end_busy_s = time.monotonic(), busy_s()
            if not self._left:
                self.done.set()


@contextlib.contextmanager
def burning(parameters: dict[str, str], window_s: float) -> Generator[None]:
    """Use the restore's processor time: two processes as nice as its helpers, two normal ones."""
    commands = [
        [sys.executable, "-c", BURNER, str(burn_s / window_s / 2), str(window_s), str(niceness)]
        for burn_s, niceness in (
            (float(parameters["helpers_s"]), NICENESS),
            (float(parameters["rest_s"]), 0),
        )
        for _ in range(2)
    ]
    # In separate sessions, like unrelated programs: Linux may first divide time between sessions.
    burners = [subprocess.Popen(command, start_new_session=True) for command in commands]
    try:
        yield
    finally:
        for burner in burners:
            burner.wait()


def wait_restored(app: KafkaStreams, restoring: Restoring) -> None:
    begin_s = time.monotonic()
    while not restoring.done.wait(1) and app.error is None:
        if time.monotonic() - begin_s > TIMEOUT_S:
            break
    if not restoring.done.is_set():
        raise SystemExit(f"not restored within {TIMEOUT_S} s: {app.error}")


def main(parameters: dict[str, str]) -> None:
    beside = parameters["beside"]
    batches, restoring = Batches(), Restoring(int(parameters["partitions"]))
    restored = parameters["input_topic"] if beside == "restore" else None
    config = StreamsConfig(
        application_id=parameters["application_id"],
        bootstrap_servers=parameters["bootstrap_servers"],
        state_dir=parameters["state_dir"],
        task_assignor="fixed",
        statestore_cache_max_bytes=64 << 20,
    )
    app = KafkaStreams(topology(parameters["load_topic"], restored, batches), config)
    app.set_restore_listener(restoring)
    result: dict[str, Any] = {}
    app.start()
    if beside == "restore":
        wait_restored(app, restoring)
        result["busy_s"] = restoring.end_busy_s - max(restoring.busy_s, batches.busy_s)
        helpers = [child.cpu_times() for child in psutil.Process().children()]
        result["helpers_s"] = sum(helper.user + helper.system for helper in helpers)
        begin_s = max(restoring.begin_s, batches.times[0][0])
        result |= batches.figures(begin_s, restoring.end_s)
    else:
        if not app.wait_until_running(TIMEOUT_S):
            raise SystemExit(f"not running: {app.error}")
        while not batches.times and app.error is None:
            time.sleep(0.01)
        window_s = float(parameters["window_s"])
        begin_s, busy_before_s = time.monotonic(), busy_s()
        with burning(parameters, window_s) if beside == "burner" else contextlib.nullcontext():
            time.sleep(max(begin_s + window_s - time.monotonic(), 0))
            result["busy_s"] = busy_s() - busy_before_s
            result |= batches.figures(begin_s, begin_s + window_s)
    counted = sum(count for _, count in batches.times)  # counting continues while the store is read
    if beside == "restore":
        if not app.wait_until_running(TIMEOUT_S):
            raise SystemExit(f"not running: {app.error}")
        result |= content(app)
    app.close(timeout=30_000)
    end = parameters.get("load_records")
    if end is not None and counted >= int(end):
        raise SystemExit(
            f"the load ended before the measured window: {parameters['load_topic']} is too short"
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
