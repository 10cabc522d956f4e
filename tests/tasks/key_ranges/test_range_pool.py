"""Range pool: it starts with few threads; waiting calls get all."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

import pytest

from tidewheel.tasks.key_ranges import range_pool
from tidewheel.tasks.key_ranges.concurrency import MIN_CONCURRENCY, ConcurrencyLimit
from tidewheel.tasks.key_ranges.range_pool import RangePool
from tidewheel.tasks.key_ranges.range_worker import RangeWorker, Scheduling
from tidewheel.tasks.key_ranges.shared_loop import LoopRunner, WorkerLoop

THREADS = 8
#: More than any of this takes on a busy machine.
PATIENCE_S = 20.0


class Endless:
    """A range that always has work; each turn is one call."""

    unit_since_s: float | None = None
    slow = True
    ended = False
    awaits = False

    def __init__(self, call: Callable[[], object]) -> None:
        self.scheduling = Scheduling.IDLE
        self.waiting = LoopRunner(WorkerLoop().share)
        self.has_work = True
        self.call = call
        self.turns = 0

    def turn(self, *, others_wait: Callable[[], bool], alone: Callable[[], bool]) -> None:
        self.unit_since_s = time.monotonic()
        self.call()
        self.unit_since_s = None
        others_wait()
        alone()
        self.turns += 1


@contextmanager
def working(calls: list[Callable[[], object]]) -> Generator[list[Endless]]:
    pool = RangePool(THREADS)
    ranges = [Endless(each) for each in calls]
    try:
        pool.wake(cast("list[RangeWorker]", ranges))
        yield ranges
    finally:
        for each in ranges:
            each.has_work = False
        pool.close()


class Meeting:
    """A call that returns when so many threads are in it, or when it is over."""

    def __init__(self, threads: int = THREADS) -> None:
        self.met = 0
        self._barrier = threading.Barrier(threads)

    def __call__(self) -> None:
        with suppress(threading.BrokenBarrierError):
            self._barrier.wait(PATIENCE_S)
            self.met += 1

    def end(self) -> None:
        self._barrier.abort()


def until(true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_as_many_calls_wait_at_a_time_as_there_are_threads() -> None:
    meeting = Meeting()
    with working([meeting] * THREADS):
        until(lambda: meeting.met >= 3 * THREADS)
        meeting.end()


def test_measurements_of_many_threads_do_not_count_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    #: Per limit: another test's pool may measure once more before its thread ends.
    of_each: defaultdict[ConcurrencyLimit, list[int]] = defaultdict(list)
    release = threading.Event()

    def note(concurrency: ConcurrencyLimit, _elapsed_s: float, **seen: Any) -> None:
        at_work = of_each[concurrency]
        at_work.append(seen["at_work"])
        concurrency.limit = THREADS
        if THREADS in at_work:  # all are in a call until this window ends
            concurrency.limit = MIN_CONCURRENCY
            release.set()

    def call() -> None:
        release.wait(PATIENCE_S)
        time.sleep(0.01)

    def mine() -> list[int]:
        return next((each for each in list(of_each.values()) if THREADS in each[:-1]), [])

    monkeypatch.setattr(ConcurrencyLimit, "adapt", note)
    monkeypatch.setattr(range_pool, "_LONG_S", PATIENCE_S)
    with working([call] * THREADS):
        until(lambda: bool(mine()))

    assert mine()[mine().index(THREADS) + 1] > MIN_CONCURRENCY


def test_ranges_take_turns_on_fewer_threads() -> None:
    pool = RangePool(1)
    ranges = [Endless(lambda: time.sleep(0.001)) for _ in range(4)]
    pool.wake(cast("list[RangeWorker]", ranges))
    until(lambda: sum(each.turns for each in ranges) >= 40)
    for each in ranges:
        each.has_work = False
    pool.close()
    assert min(each.turns for each in ranges) >= max(each.turns for each in ranges) - 1


def test_calls_that_never_return_leave_the_other_threads_to_others() -> None:
    forever = threading.Event()
    calls: list[Callable[[], object]] = [forever.wait] * (THREADS - 1)
    with working([*calls, lambda: None]) as ranges:
        until(lambda: ranges[-1].turns > 100)
        assert not any(each.turns for each in ranges[:-1])
        forever.set()


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[], object]]:
    """Block until the test ends, and report full use of the interpreter."""
    over, since_s = threading.Event(), dict[int, float]()

    def call() -> None:
        since_s[time.pthread_getcpuclockid(threading.get_ident())] = time.monotonic()
        over.wait()

    def used_s(clock: int) -> float:
        now_s = time.monotonic()
        return (now_s - since_s.get(clock, now_s)) / len(since_s) if since_s else 0.0

    monkeypatch.setattr(time, "clock_gettime", used_s)
    yield call
    over.set()


def test_calls_that_compute_for_ever_leave_the_other_threads_to_others(
    compute: Callable[[], object],
) -> None:
    with working([*[compute] * MIN_CONCURRENCY, lambda: None]) as ranges:
        until(lambda: ranges[-1].turns > 100)
        assert not any(each.turns for each in ranges[:-1])


def test_computing_calls_with_a_busy_cpu_do_not_count_as_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, at_once, most_at_once, lock = 0, 0, 0, threading.Lock()

    def call() -> None:
        nonlocal at_once, most_at_once
        with lock:
            at_once += 1
            most_at_once = max(at_once, most_at_once)
        time.sleep(0.02)
        with lock:
            at_once -= 1

    begun_s = time.monotonic()

    def used_s(clock: int) -> float:  # a quarter of a processor is there for all threads
        return (time.monotonic() - begun_s) / 4 / (THREADS + 1)

    def waited_s(
        native_id: int,
    ) -> float:  # for which those at work wait while one of them has the interpreter
        nonlocal looks
        looks += 1
        return (time.monotonic() - begun_s) / 2

    monkeypatch.setattr(time, "clock_gettime", used_s)
    monkeypatch.setattr(range_pool, "waited_s", waited_s)
    with working([call] * (2 * THREADS)):
        until(lambda: looks > 40)
    assert MIN_CONCURRENCY <= most_at_once <= 2 * MIN_CONCURRENCY


def test_an_endless_computing_call_does_not_limit_waiting_calls(
    compute: Callable[[], object],
) -> None:
    meeting = Meeting(THREADS - 1)
    with working([compute, *[meeting] * (THREADS - 1)]):
        until(lambda: meeting.met >= 3 * (THREADS - 1))
        meeting.end()


def test_an_abandoned_computing_call_does_not_limit_waiting_calls(
    compute: Callable[[], object],
) -> None:
    pool, meeting = RangePool(THREADS), Meeting()
    stuck, ranges = Endless(compute), [Endless(meeting) for _ in range(THREADS)]
    pool.wake(cast("list[RangeWorker]", [stuck]))
    until(lambda: stuck.scheduling is Scheduling.RUNNING)
    pool.abandon(cast("RangeWorker", stuck))
    pool.wake(cast("list[RangeWorker]", ranges))
    until(lambda: meeting.met >= THREADS)
    for each in (stuck, *ranges):
        each.has_work = False
    meeting.end()
    pool.close()


def test_abandoned_threads_do_not_count_for_the_limit() -> None:
    forever = threading.Event()
    pool = RangePool(1)
    stuck, other = Endless(forever.wait), Endless(lambda: None)
    pool.wake(cast("list[RangeWorker]", [stuck, other]))
    until(lambda: stuck.scheduling is Scheduling.RUNNING)
    pool.abandon(cast("RangeWorker", stuck))
    until(lambda: other.turns > 10)
    stuck.has_work = other.has_work = False
    forever.set()
    until(lambda: other.scheduling is stuck.scheduling is Scheduling.IDLE)
    pool.close()


def test_without_thread_clocks_all_threads_work_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(time, "pthread_getcpuclockid")
    known = set(threading.enumerate())
    meeting = Meeting()
    with working([meeting] * THREADS):
        begun = {each.name for each in threading.enumerate() if each not in known}
        assert len(begun) >= THREADS
        assert "tidewheel-concurrency" not in begun
        until(lambda: meeting.met >= THREADS)
        meeting.end()


def test_a_pool_outlives_the_thread_that_created_it() -> None:
    made: list[RangePool] = []
    maker = threading.Thread(target=lambda: made.append(RangePool(THREADS)))
    maker.start()
    maker.join()
    meeting = Meeting()
    ranges = [Endless(meeting) for _ in range(THREADS)]
    made[0].wake(cast("list[RangeWorker]", ranges))
    until(lambda: meeting.met >= THREADS)
    for each in ranges:
        each.has_work = False
    meeting.end()
    made[0].close()


def test_a_closed_pool_leaves_no_thread() -> None:
    others = set(threading.enumerate())
    with working([lambda: time.sleep(0.001)] * THREADS) as ranges:
        until(lambda: all(each.turns for each in ranges))
        names = ("tidewheel-range", "tidewheel-concurrency")
        mine = [each for each in threading.enumerate() if each.name.startswith(names)]
        mine = [each for each in mine if each not in others]
        assert len(mine) > THREADS
    until(lambda: not any(each.is_alive() for each in mine))
