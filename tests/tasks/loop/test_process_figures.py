"""Figures of processed records and of rows."""

import asyncio
from typing import Any

from tests.tasks.key_ranges.programs import TEXT
from tests.tasks.loop.bench import Bench
from tidewheel import StreamsBuilder

RECORDS = 20


def test_records_in_calls_are_in_hand_and_not_processed() -> None:
    free = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def waits(value: str) -> str:
        loops.append(asyncio.get_running_loop())
        await free.wait()
        return value

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).map_values(waits).to("out", **TEXT)
    bench = Bench(builder.build(), {"in": 1, "out": 1})
    for number in range(RECORDS):
        bench.send("in", f"k{number}", "v")
    waiting: list[tuple[int, int, float, float]] = []
    ended: list[tuple[int, float, float]] = []

    def watch(worker: Any, _source: Any) -> None:
        (task,) = worker.tasks.values() or (None,)
        if task is None:
            return
        finished = worker.metrics.finished([task])
        figures = task.figures.metrics()
        done, buffered = figures["process-total"], figures["buffered-records"]
        if loops and not free.is_set():
            waiting.append((finished, worker.metrics.consumed, done, buffered))
            if len(waiting) == 50:
                loops[0].call_soon_threadsafe(free.set)
        ended.append((finished, done, buffered))

    bench.at_poll.append(watch)
    assert bench.live(threads=8)
    assert waiting[-1] == (0, RECORDS, 0, RECORDS)
    assert ended[-1] == (RECORDS, RECORDS, 0)


def test_rows_of_commits_are_counted_by_store() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).group_by_key().count(store="counts")
    bench = Bench(builder.build(), {"in": 1}, commit_interval_ms=3_600_000)
    for key in "aab":
        bench.send("in", key, "v")
    assert bench.live()
    assert bench.worker is not None
    assert bench.worker.metrics.puts == {"counts": 2}, "the commit has the last row of each key"
