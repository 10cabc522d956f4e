"""Concurrency limit: few ranges compute, all may wait."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.key_ranges.concurrency import MIN_CONCURRENCY, ConcurrencyLimit

WINDOW_S = 0.05
#: Windows until the second trial is over: 2 s, 4 s, and its duration.
SETTLED = 140


@dataclass(frozen=True, slots=True)
class Machine:
    """Model of the processors.

    Attributes:
        part: Share of wanted time that a thread gets; the rest is run-queue time.
    """

    processors: float = 64.0
    part: float = 1.0


@dataclass(frozen=True, slots=True)
class Calls:
    """Model of threads over one interpreter.

    Attributes:
        outside_s: Seconds of computing without the GIL.
    """

    waits_s: float
    computes_s: float
    outside_s: float = 0.0

    def used(self, threads: int, machine: Machine) -> float:
        uses_s = self.computes_s + self.outside_s
        calls_per_s = threads / (self.waits_s + uses_s / machine.part)
        if self.computes_s:
            calls_per_s = min(calls_per_s, machine.part / self.computes_s)
        return min(calls_per_s * uses_s, machine.processors)


FREE = Machine()


def run(
    concurrency: ConcurrencyLimit,
    calls: Calls,
    windows: int,
    *,
    ranges: int = 1_000,
    loop: float = 0.0,
    machine: Machine = FREE,
) -> int:
    narrow = 0
    for _ in range(windows):
        at_work = min(concurrency.limit, ranges)
        narrow += at_work <= MIN_CONCURRENCY
        used = calls.used(at_work, machine)
        concurrency.adapt(
            WINDOW_S,
            ranges=used,
            waited=used / machine.part - used,
            loop=loop,
            at_work=at_work,
            more_wait=at_work < ranges,
        )
    return narrow


COMPUTES = Calls(waits_s=0, computes_s=0.0001)
WAITS = Calls(waits_s=0.010, computes_s=0.0002)
waiting = st.builds(
    Calls, waits_s=st.floats(0.0031, 5.0), computes_s=st.floats(0.0, 0.001), outside_s=st.just(0.0)
)
computing = st.builds(
    Calls, waits_s=st.just(0.0), computes_s=st.floats(0.00001, 5.0), outside_s=st.just(0.0)
)
threads = st.integers(1, 300)
machines = st.builds(Machine, part=st.floats(0.2, 1.0))


@given(threads, waiting)
def test_all_threads_work_on_waiting_calls(most: int, calls: Calls) -> None:
    concurrency = ConcurrencyLimit(most)
    run(concurrency, calls, 4)
    assert concurrency.limit == most


@given(threads, st.floats(0.010, 5.0), st.floats(0.0, 0.0005), machines)
def test_all_threads_work_on_waiting_calls_with_a_busy_cpu(
    most: int, waits_s: float, computes_s: float, machine: Machine
) -> None:
    concurrency = ConcurrencyLimit(most)
    run(concurrency, Calls(waits_s, computes_s), 4, machine=machine)
    assert concurrency.limit == most


def test_all_threads_work_on_waiting_calls_that_get_a_cpu_late() -> None:
    concurrency = ConcurrencyLimit(16)
    for _ in range(4):  # each answer takes 10 ms, and so long a thread then waits to compute 0.2 ms
        concurrency.adapt(
            WINDOW_S, ranges=0.02, waited=1.0, loop=0, at_work=MIN_CONCURRENCY, more_wait=True
        )
    assert concurrency.limit == 16


@given(threads, computing, st.floats(0, 0.5), machines)
def test_few_threads_work_on_computing_calls(
    most: int, calls: Calls, loop: float, machine: Machine
) -> None:
    concurrency = ConcurrencyLimit(most)
    run(concurrency, calls, SETTLED, loop=loop, machine=machine)
    assert concurrency.limit == min(most, MIN_CONCURRENCY)


def test_more_threads_are_tried_rarely_for_computing_calls() -> None:
    concurrency = ConcurrencyLimit(16)
    hour = round(3_600 / WINDOW_S)
    assert hour - run(concurrency, COMPUTES, hour) < hour / 1_000
    assert concurrency.limit == MIN_CONCURRENCY


@given(st.integers(3, 300), waiting, computing, machines)
def test_a_change_from_waiting_to_computing_calls_is_detected(
    most: int, waits: Calls, computes: Calls, machine: Machine
) -> None:
    concurrency = ConcurrencyLimit(most)
    run(concurrency, waits, 10)
    run(concurrency, computes, SETTLED, machine=machine)
    assert run(concurrency, computes, 20, machine=machine) >= 16  # all but a try
    run(concurrency, waits, SETTLED)
    assert concurrency.limit == most


def test_a_short_wait_after_long_computing_is_detected() -> None:
    concurrency = ConcurrencyLimit(16)
    run(concurrency, COMPUTES, round(3_600 / WINDOW_S))
    run(concurrency, WAITS, SETTLED)
    run(concurrency, COMPUTES, SETTLED)
    assert concurrency.limit == MIN_CONCURRENCY


def test_measurements_of_waiting_calls_that_saturate_the_interpreter_become_rare() -> None:
    concurrency = ConcurrencyLimit(300)
    assert WAITS.used(300, FREE) == 1.0
    hour = round(3_600 / WINDOW_S)
    narrow = run(concurrency, WAITS, hour)
    assert 0 < narrow < hour / 1_000
    assert concurrency.limit == 300


def test_all_threads_work_on_calls_outside_the_interpreter() -> None:
    concurrency = ConcurrencyLimit(16)
    run(concurrency, Calls(waits_s=0, computes_s=0.001, outside_s=0.010), 4)
    assert concurrency.limit == 16


@given(st.integers(3, 300), st.floats(0.26, 1.0), st.floats(0.001, 1.0), st.integers(2, 64))
def test_all_threads_work_on_calls_that_wait_and_compute_outside_the_interpreter(
    most: int, part: float, call_s: float, processors: int
) -> None:
    calls = Calls(waits_s=(1 - part) * call_s, computes_s=0.0, outside_s=part * call_s)
    concurrency = ConcurrencyLimit(most)
    run(concurrency, calls, SETTLED, machine=Machine(processors=processors))
    assert concurrency.limit == most


def test_two_threads_suffice_for_calls_outside_the_interpreter_on_one_cpu() -> None:
    concurrency = ConcurrencyLimit(16)
    calls = Calls(waits_s=0.004, computes_s=0.0, outside_s=0.007)
    run(concurrency, calls, SETTLED, machine=Machine(processors=1))
    assert concurrency.limit == MIN_CONCURRENCY


def test_a_change_to_computing_outside_the_interpreter_is_detected() -> None:
    concurrency = ConcurrencyLimit(16)
    run(concurrency, COMPUTES, round(3_600 / WINDOW_S))
    calls = Calls(waits_s=0.004, computes_s=0.0, outside_s=0.007)
    run(concurrency, calls, round(301 / WINDOW_S), machine=Machine(processors=2))
    assert concurrency.limit == 16


@given(st.integers(3, 8))
def test_as_many_threads_are_tried_as_ranges_have_work(ranges: int) -> None:
    concurrency = ConcurrencyLimit(16)
    calls = Calls(waits_s=0.004, computes_s=0.0, outside_s=0.007)
    run(concurrency, calls, SETTLED, ranges=ranges, machine=Machine(processors=2))
    assert concurrency.limit == 16


def test_a_try_ends_without_more_ranges_with_work() -> None:
    concurrency = ConcurrencyLimit(16)
    run(concurrency, COMPUTES, 2)
    assert concurrency.limit == 2 * MIN_CONCURRENCY
    run(concurrency, COMPUTES, 10, ranges=MIN_CONCURRENCY)
    assert concurrency.limit == MIN_CONCURRENCY


def test_calls_that_wait_and_compute_get_a_limit_between() -> None:
    concurrency = ConcurrencyLimit(16)
    run(concurrency, Calls(waits_s=0.0020, computes_s=0.0010), SETTLED)
    assert concurrency.limit == 2 * MIN_CONCURRENCY


def test_calls_that_never_return_do_not_block_others() -> None:
    concurrency = ConcurrencyLimit(16)
    run(concurrency, COMPUTES, SETTLED)
    assert concurrency.limit == MIN_CONCURRENCY
    for _ in range(2):
        concurrency.adapt(
            WINDOW_S, ranges=0.0, waited=0.0, loop=0.1, at_work=MIN_CONCURRENCY, more_wait=True
        )
    assert concurrency.limit == 16


def test_few_threads_work_on_computing_calls_that_briefly_got_no_cpu() -> None:
    concurrency = ConcurrencyLimit(16)
    run(concurrency, COMPUTES, SETTLED)
    for _ in range(10):
        concurrency.adapt(
            WINDOW_S, ranges=0.05, waited=1.0, loop=0.0, at_work=MIN_CONCURRENCY, more_wait=True
        )
        assert concurrency.limit == MIN_CONCURRENCY
        run(concurrency, COMPUTES, 1)


def test_long_calls_delay_a_measurement() -> None:
    concurrency = ConcurrencyLimit(16)
    run(concurrency, WAITS, 4)
    for _ in range(SETTLED):  # all of them compute, and none ends while few are wanted
        concurrency.adapt(WINDOW_S, ranges=1.0, waited=0.0, loop=0.0, at_work=16, more_wait=False)
    assert concurrency.limit == 16


def test_ranges_that_fit_into_few_threads_are_not_measured() -> None:
    concurrency = ConcurrencyLimit(16)
    run(concurrency, WAITS, SETTLED, ranges=2)
    assert concurrency.limit == MIN_CONCURRENCY
    run(concurrency, WAITS, 4)
    assert concurrency.limit == 16


@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 9), st.booleans()), max_size=300),
)
def test_the_limit_stays_between_its_minimum_and_maximum(
    most: int, noted: list[tuple[float, float, bool]]
) -> None:
    concurrency = ConcurrencyLimit(most)
    for ranges, waited, more_wait in noted:
        concurrency.adapt(
            WINDOW_S,
            ranges=ranges,
            waited=waited,
            loop=0.1,
            at_work=concurrency.limit,
            more_wait=more_wait,
        )
        assert min(MIN_CONCURRENCY, most) <= concurrency.limit <= most
