"""Key ranges days apart in stream time: no crash loses a window of the slower one."""

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.broker import FakeBroker
from tests.tasks.key_ranges.programs import STRING, TEXT
from tests.tasks.loop.bench import APP, Bench, Crash
from tests.tasks.restore.test_run_restores import snapshot, use_runs
from tidewheel import Serdes, SessionWindows, SlidingWindows, StreamsBuilder, TimeWindows, Topology
from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import VectorPart

MINUTE = 60_000
DAY = 1_440 * MINUTE
THREADS = 4
SLOW = "slow"
INPUT = TopicPartition("in", 0)

WINDOWS: dict[str, Any] = {
    "tumbling": TimeWindows(10 * MINUTE, grace=0),
    "hopping": TimeWindows(10 * MINUTE, advance=5 * MINUTE, grace=MINUTE),
    "sliding": SlidingWindows(10 * MINUTE, grace=0),
    "session": SessionWindows(10 * MINUTE, grace=MINUTE),
}

#: (key, timestamp, value) of a record.
Row = tuple[str, int, str]


class Gate:
    """A function that does not return for some values until it is opened."""

    def __init__(self, *, opened: bool = False) -> None:
        self.opened = threading.Event()
        if opened:
            self.opened.set()

    def __call__(self, value: str) -> str:
        if value == "held":
            self.opened.wait(60)
        return value


def windowed(name: str, gate: Callable[[str], str] = str) -> Topology:
    builder = StreamsBuilder()
    passed = builder.stream("in", **TEXT).map_values(gate)
    counts = passed.group_by_key().windowed_by(WINDOWS[name]).count(store="counts")
    told = counts.to_stream(lambda key, _count: f"{key.key} {key.start} {key.end}")
    told.to("out", key_serde=STRING, value_serde=Serdes.json())
    return builder.build()


def bench_of(topology: Topology) -> Bench:
    bench = Bench(topology, {"in": 1, "out": 1}, commit_interval_ms=3)
    bench.idle_polls = 3
    return bench


def send(bench: Bench, rows: Sequence[Row]) -> None:
    for key, timestamp, value in rows:
        bench.send("in", key, value, timestamp=timestamp)


def found(broker: FakeBroker) -> dict[Any, list[Any]]:
    by_key: dict[Any, list[Any]] = {}
    for each in broker.records("out"):
        by_key.setdefault(each.key, []).append(each.value)
    return by_key


def at_factor_one(name: str, rows: Sequence[Row]) -> dict[Any, list[Any]]:
    bench = bench_of(windowed(name))
    send(bench, rows)
    assert bench.live()
    return found(bench.broker)


def ranges_of(broker: FakeBroker) -> tuple[VectorPart, ...]:
    committed = broker.groups[APP].get(INPUT)
    if committed is None:
        return ()
    progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
    assert progress is not None
    return progress.vector.parts


def are_ahead(broker: FakeBroker, key: str) -> bool:
    ranges = ranges_of(broker)
    mine = [each for each in ranges if each.first_hash <= zlib.crc32(key.encode())][-1:]
    others = [each.offset for each in ranges if each not in mine]
    return set(others) == {broker.topics["in"].logs[0].end}


def crash_far_apart(bench: Bench, gate: Gate) -> None:
    def crash(_worker: Any, _source: Any) -> None:
        if are_ahead(bench.broker, SLOW):
            raise Crash("far apart")

    bench.at_poll.append(crash)
    assert not bench.live(threads=THREADS)
    bench.at_poll.clear()
    gate.opened.set()


#: A record of the slow key's window is blocked while other keys advance forty days.
BEFORE: list[Row] = [
    (SLOW, 0, "v"),
    ("a", MINUTE, "v"),
    (SLOW, 2 * MINUTE, "v"),
    ("b", 2 * MINUTE, "v"),
]
APART: list[Row] = [
    (SLOW, 3 * MINUTE, "held"),
    *((f"k{day % 7}", day * DAY, "v") for day in range(1, 41)),
    (SLOW, 40 * DAY + MINUTE, "v"),
]
BEHIND: list[Row] = [(SLOW, 40 * DAY + 2 * MINUTE, "v"), ("a", 40 * DAY + 3 * MINUTE, "v")]


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as path:
        yield Path(path)


def _lost(bench: Bench, _folder: Path) -> None:
    bench.disk.versions.clear()


def _tail(bench: Bench, _folder: Path) -> None:
    bench.disk.lose(1)


def _runs(bench: Bench, folder: Path) -> None:
    bench.disk.versions.clear()
    use_runs(bench, folder)


def _tail_in_runs(bench: Bench, folder: Path) -> None:
    bench.disk.lose(1)
    use_runs(bench, folder)


def _snapshot(bench: Bench, folder: Path) -> None:
    """Take a snapshot by the fastest range's time: it lacks needed rows."""
    snapshot(bench, folder, "counts")
    bench.disk.versions.clear()
    use_runs(bench, folder, snapshots=True)


DAMAGES = {"lost": _lost, "tail": _tail, "runs": _runs, "tail in runs": _tail_in_runs, "snapshot": _snapshot}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("threads", [1, THREADS])
def test_K3_a_crash_while_ranges_are_days_apart_loses_no_window(
    folder: Path, name: str, damage: str, threads: int
) -> None:
    gate = Gate()
    bench = bench_of(windowed(name, gate))
    send(bench, BEFORE)
    assert bench.live(threads=THREADS)
    send(bench, APART)
    crash_far_apart(bench, gate)
    DAMAGES[damage](bench, folder)
    send(bench, BEHIND)
    assert bench.live(threads=threads)
    assert found(bench.broker) == at_factor_one(name, [*BEFORE, *APART, *BEHIND])


# -- any rows, any lives -----------------------------------------------------------------------------------------------

#: One process life: threads (and factor), records sent before it, hanging calls (end by crash),
#: steps until an unconditional crash, and damage after it.
Life = tuple[int, int, bool, int | None, str]

#: So many polls without a commit, and everybody who is not held is done.
_STALLED = 40

_LIVES = st.lists(
    st.tuples(
        st.sampled_from([1, 4, 16, 16]),
        st.integers(5, 30),
        st.sampled_from([True, True, True, False]),
        st.sampled_from([None, None, None, 5, 20, 40, 60]),
        st.sampled_from(["nothing", *DAMAGES]),
    ),
    min_size=1,
    max_size=4,
)


def _timed(steps: list[tuple[str, int, int, bool]]) -> list[Row]:
    now, rows = 0, list[Row]()
    for key, ahead, behind, held in steps:
        now += ahead
        rows.append((key, max(now - behind, 0), "held" if held else "v"))
    return rows


#: Mostly some minutes later, in the same windows; now and then days.
_AHEAD = st.sampled_from([0, MINUTE, MINUTE, 2 * MINUTE, 20 * MINUTE, 3 * DAY])
_BEHIND = st.sampled_from([0, 0, 0, 0, 0, MINUTE, 8 * MINUTE, 2 * DAY])
_ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcdef"), _AHEAD, _BEHIND, st.sampled_from([True, False, False, False])
    ),
    min_size=20,
    max_size=60,
).map(_timed)


class Stalled:
    """Crashes a life once nothing is committed any more; called at each poll."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._last: object = None
        self._polls = 0

    def __call__(self, _worker: Any, _source: Any) -> None:
        now = ranges_of(self._broker)
        self._polls = self._polls + 1 if now == self._last else 0
        self._last = now
        if self._polls > _STALLED:
            raise Crash("nothing goes on")


def _run_lives(name: str, rows: Sequence[Row], lives: Sequence[Life], folder: Path) -> Any:
    gates = [Gate(opened=True)]

    def through_last_gate(value: str) -> str:
        return gates[-1](value)

    bench = bench_of(windowed(name, through_last_gate))
    left = list(rows)
    for threads, records, hangs, crash_after, damage in lives:
        now, left = left[:records], left[records:]
        send(bench, now)
        gate = Gate(opened=not hangs or threads == 1)
        gates.append(gate)
        if not gate.opened.is_set():
            bench.at_poll.append(Stalled(bench.broker))
        ended = bench.live(threads=threads, crash_after=crash_after)
        bench.at_poll.clear()
        gate.opened.set()
        if not ended and damage != "nothing":
            bench.runs = None
            DAMAGES[damage](bench, folder)
    gates.append(Gate(opened=True))
    send(bench, left)
    assert bench.live(threads=lives[-1][0])
    return found(bench.broker)


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
@settings(max_examples=25, deadline=None)
@given(rows=_ROWS, lives=_LIVES)
def test_K3_K6_windows_are_exact_at_any_distance_of_ranges(
    name: str, rows: list[Row], lives: list[Life]
) -> None:
    with TemporaryDirectory() as path:
        assert _run_lives(name, rows, lives, Path(path)) == at_factor_one(name, rows)
