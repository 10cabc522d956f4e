"""Requests of a range to its task: handlers, dead letters, commits, wall clock, failures."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.key_ranges.programs import LONG, STRING, TEXT
from tests.tasks.loop.bench import Bench
from tests.tasks.loop.group_bench import GroupBench
from tidewheel import Processor, PunctuationType, Record, StreamsBuilder, Topology
from tidewheel.tasks.errors import RecordFailedError

THREADS = 4

_LIVES = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 4]),
        st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60),
        st.none() | st.integers(0, 60),
    ),
    min_size=1,
    max_size=3,
)


def _summing() -> Topology:
    builder = StreamsBuilder()
    numbers = builder.stream("in", key_serde=STRING, value_serde=LONG)
    counts = numbers.group_by_key().count()
    counts.to_stream().to("out", key_serde=STRING, value_serde=LONG)
    return builder.build()


@settings(max_examples=30, deadline=None)
@given(lives=_LIVES)
def test_K3_a_record_that_cannot_be_read_has_one_dead_letter_over_crashes(
    lives: list[tuple[int, Sequence[tuple[int, bool]], int | None]],
) -> None:
    bench = Bench(
        _summing(),
        {"in": 1, "out": 1, "dead": 1},
        commit_interval_ms=5,
        deserialization_exception_handler="continue",
        dead_letter_queue_topic="dead",
    )
    bench.idle_polls = 3
    good: Counter[str] = Counter()
    bad: list[str] = []
    sent = 0
    for threads, records, crash_after in lives:
        for key, fails in records:
            sent += 1
            if fails:
                bad.append(f"{sent}")
                bench.send("in", f"k{key}", f"bad {sent}")
            else:
                good[f"k{key}"] += 1
                bench.broker.send("in", bytes(8), f"k{key}".encode(), timestamp=1_000)
        bench.live(threads=threads, crash_after=crash_after)
    assert bench.live(threads=lives[-1][0])
    letters = [
        (each.value or b"").decode().removeprefix("bad ") for each in bench.broker.records("dead")
    ]
    assert sorted(letters, key=int) == bad
    found: dict[str, list[int]] = {}
    for each in bench.broker.records("out"):
        key_text = (each.key or b"").decode()
        found.setdefault(key_text, []).append(int.from_bytes(each.value or b"", "big"))
    assert found == {key: list(range(1, count + 1)) for key, count in good.items()}


def _with(supplier: type[Processor[str, str, str, str]]) -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).process(supplier).to("out", **TEXT)
    return builder.build()


def test_K1_a_failing_record_ends_the_worker_with_its_error() -> None:
    class Fail(Processor[str, str, str, str]):
        keyed = True

        def process(self, record: Record[str, str]) -> None:
            if record.value == "bad":
                raise ValueError("boom")
            self.context.forward(record)

    bench = Bench(_with(Fail), {"in": 1, "out": 1})
    for number in range(50):
        bench.send("in", f"k{number}", "bad" if number == 30 else "good")
    with pytest.raises(RecordFailedError, match="boom") as failed:
        bench.live(threads=THREADS)
    assert failed.value.offset == 30


def test_K1_a_requested_commit_includes_its_record() -> None:
    class Ask(Processor[str, str, str, str]):
        keyed = True

        def process(self, record: Record[str, str]) -> None:
            self.context.forward(record)
            if record.value == "now":
                self.context.commit()

    bench = Bench(_with(Ask), {"in": 1, "out": 1}, commit_interval_ms=3_600_000)
    bench.idle_polls = 1_000
    bench.send("in", "k", "now")
    seen: list[int] = []

    def stop_at_output(worker: Any, _source: Any) -> None:
        seen.append(len(bench.outputs("out")))
        if seen[-1]:
            worker.stop()

    bench.at_poll.append(stop_at_output)
    assert bench.live(threads=THREADS)
    assert seen[-1] == 1


def test_K1_each_range_is_called_by_the_wall_clock() -> None:
    class Tick(Processor[str, str, str, str]):
        keyed = True

        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(100, PunctuationType.WALL_CLOCK_TIME, self._tick)

        def _tick(self, now_ms: int) -> None:
            self.context.forward(Record("tick", threading.current_thread().name, now_ms))

        def process(self, record: Record[str, str]) -> None:
            pass

    bench = Bench(_with(Tick), {"in": 1, "out": 1}, commit_interval_ms=5)
    bench.idle_polls = 1_000

    def stop_at_output(worker: Any, _source: Any) -> None:
        if len(bench.outputs("out")) >= 3 * THREADS:
            worker.stop()

    bench.at_poll.append(stop_at_output)
    assert bench.live(threads=THREADS)
    ticks = bench.outputs("out")
    assert len(ticks) >= 3 * THREADS
    assert all((name or b"").startswith(b"tidewheel-range-") for _, name in ticks)


def test_K5_awaits_of_different_keys_overlap_and_those_of_a_key_keep_their_order() -> None:
    class Wait(Processor[str, str, str, str]):
        keyed = True
        now = 0
        most = 0

        async def process(self, record: Record[str, str]) -> None:
            Wait.now += 1
            Wait.most = max(Wait.most, Wait.now)
            await asyncio.sleep(0.002)
            Wait.now -= 1
            self.context.forward(record)

    bench = Bench(_with(Wait), {"in": 1, "out": 1}, commit_interval_ms=5)
    bench.idle_polls = 3
    for number in range(200):
        bench.send("in", f"k{number % 20}", str(number // 20))
    assert bench.live(threads=THREADS)
    assert 1 < Wait.most <= THREADS
    found: dict[str | None, list[bytes | None]] = {}
    for key, value in bench.outputs("out"):
        found.setdefault(key, []).append(value)
    assert found == {f"k{key}": [b"%d" % turn for turn in range(10)] for key in range(20)}


def test_K5_a_released_task_cancels_its_coroutines_without_their_records() -> None:
    entered, cancelled = threading.Event(), threading.Event()

    class Hang(Processor[str, str, str, str]):
        keyed = True

        async def process(self, record: Record[str, str]) -> None:
            self.context.forward(record)
            if record.value == "hang" and not entered.is_set():
                entered.set()
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.set()
                    raise

    with GroupBench(_with(Hang), {"in": 1, "out": 1}) as group:
        host = group.host("one", threads=THREADS)
        host.run_task("0_0", 1)
        group.send("a", "first")
        host.until(lambda: group.committed() == 1, "the first is done")
        group.send("a", "hang")
        assert entered.wait(20)
        released = host.release("0_0", 1)
        assert list(released.input.values()) == [1]
        assert cancelled.wait(20)
        other = group.host("two", threads=THREADS)
        other.run_task("0_0", 2, released)
        other.until(lambda: group.committed() == 2, "it is done elsewhere")
        assert [each.value for each in group.broker.records("out")] == [b"first", b"hang"]
