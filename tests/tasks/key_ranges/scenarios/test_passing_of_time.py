"""Stream-time callbacks: equal results in key ranges and in one piece, across crashes."""

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.key_ranges.programs import LONG, STRING, TEXT
from tests.tasks.key_ranges.scenarios.test_far_apart import Gate, are_ahead
from tests.tasks.loop.bench import Bench, Crash
from tidewheel import Processor, PunctuationType, Record, Stores, StreamsBuilder, Topology

STEP_MS = 1_000

#: (key, timestamp, value) of a record.
Row = tuple[str, int, str]
#: Threads (and factor) of a life, how many records come before it, and after how many steps it crashes, if it does.
Life = tuple[int, int, int | None]


def flushing(gate: Any = str, sleep_s: float = 0.0) -> Topology:
    class Flush(Processor[str, str, str, str]):
        keyed = True

        def init(self, context: Any) -> None:
            super().init(context)
            self._store = context.get_state_store("counts")
            self._random = random.Random(0)
            context.schedule(STEP_MS, PunctuationType.STREAM_TIME, self._flush, start=0)

        def process(self, record: Record[str, str]) -> None:
            gate(record.value)
            time.sleep(self._random.random() * sleep_s)
            count = (self._store.get(record.key) or 0) + 1
            self._store.put(record.key, count)
            self.context.forward(record.replace(value=f"{count}"))

        def _flush(self, now_ms: int) -> None:
            for key, count in list(self._store.all()):
                self._store.delete(key)
                self.context.forward(Record(key, f"{count} by {now_ms}", now_ms))

    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("counts", key_serde=STRING, value_serde=LONG))
    told = builder.stream("in", **TEXT).process(Flush, stores=["counts"])
    told.to("out", **TEXT)
    return builder.build()


def bench_of(topology: Topology) -> Bench:
    bench = Bench(topology, {"in": 1, "out": 1}, commit_interval_ms=3)
    bench.idle_polls = 3
    return bench


def send(bench: Bench, rows: Sequence[Row]) -> None:
    for key, timestamp, value in rows:
        bench.send("in", key, value, timestamp=timestamp)


def found(bench: Bench) -> dict[str | None, list[bytes | None]]:
    by_key: dict[str | None, list[bytes | None]] = {}
    for key, value in bench.outputs("out"):
        by_key.setdefault(key, []).append(value)
    return by_key


def in_one_piece(rows: Sequence[Row]) -> dict[str | None, list[bytes | None]]:
    bench = bench_of(flushing())
    send(bench, rows)
    assert bench.live()
    return found(bench)


#: One key is held at its second record, while others pass a step of the time.
HELD: list[Row] = [
    ("slow", 100, "v"),
    ("slow", 200, "held"),
    *((f"k{key}", 300 + each, "v") for each in range(3) for key in range(8)),
    *((f"k{key}", 1_500 + each, "v") for each in range(3) for key in range(8)),
    ("slow", 1_900, "v"),
]


def far_apart(gate: Gate) -> Bench:
    bench = bench_of(flushing(gate))
    send(bench, HELD)

    def crash(_worker: Any, _source: Any) -> None:
        if are_ahead(bench.broker, "slow"):
            raise Crash("far apart")

    bench.at_poll.append(crash)
    assert not bench.live(threads=4)
    bench.at_poll.clear()
    gate.opened.set()
    return bench


@pytest.mark.parametrize("after", [4, 3, 16])
def test_K3_ranges_that_were_ahead_are_not_called_again_for_times_they_had_passed(
    after: int,
) -> None:
    bench = far_apart(Gate())
    assert bench.live(threads=after)
    assert found(bench) == in_one_piece(HELD)


def test_K3_a_return_to_factor_one_with_uneven_ranges_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = far_apart(Gate())
    assert bench.live(threads=1)
    assert "at a lag of 0" in caplog.text
    caplog.clear()
    assert bench.live(threads=1)
    assert not caplog.text


_LIVES = st.lists(
    st.tuples(st.sampled_from([2, 3, 8]), st.integers(0, 60), st.none() | st.integers(0, 60)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30, deadline=None)
@given(
    lives=_LIVES, slice_records=st.integers(1, 20), late=st.integers(0, 3_000), seed=st.integers()
)
def test_K3_time_is_exact_over_crashes_and_changes_of_the_factor(
    lives: list[Life], slice_records: int, late: int, seed: int
) -> None:
    bench = bench_of(flushing(sleep_s=0.002))
    bench.slice_records = slice_records
    chosen, sent = random.Random(seed), list[Row]()
    for threads, records, crash_after in lives:
        rows = [
            (f"k{chosen.randrange(11)}", (len(sent) + each) * 90 + 1 + chosen.randint(0, late), "v")
            for each in range(records)
        ]
        sent += rows
        send(bench, rows)
        bench.live(threads=threads, crash_after=crash_after)
    assert bench.live(threads=lives[-1][0])
    assert found(bench) == in_one_piece(sent)
