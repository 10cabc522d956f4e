"""Decisions after a worker's death, as values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.processes.supervisor.restart_policy import (
    Crash,
    CrashHistory,
    Restart,
    RestartSettings,
    StopRestarting,
    judge,
)

SETTINGS = RestartSettings()
PARTITION = TopicPartition("orders", 3)

RESTARTABLE = [code for code in ExitCode if not code.is_final and code is not ExitCode.OK]

crashes = st.builds(
    Crash,
    exit_code=st.sampled_from(RESTARTABLE),
    message=st.just("broken"),
    healthy_ms=st.sampled_from([0, 59_999, 60_000]),
    partition=st.just(None),
    offset=st.just(None),
)


def _crash(*, offset: int | None = None, healthy_ms: int = 0) -> Crash:
    return Crash(
        exit_code=ExitCode.RECORD_FAILED,
        message="map failed",
        healthy_ms=healthy_ms,
        partition=None if offset is None else PARTITION,
        offset=offset,
    )


def _decisions(*crashes: Crash) -> list[Restart | StopRestarting]:
    history = CrashHistory()
    decisions: list[Restart | StopRestarting] = []
    for crash in crashes:
        history, decision = judge(history, crash, SETTINGS)
        decisions.append(decision)
    return decisions


def test_waits_double_from_one_second_to_sixty() -> None:
    waits = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    assert _decisions(*[_crash()] * 8) == [Restart(wait) for wait in waits]


def test_a_healthy_minute_makes_the_next_wait_short_again() -> None:
    decisions = _decisions(_crash(), _crash(), _crash(healthy_ms=60_000), _crash())
    assert decisions == [Restart(1_000), Restart(2_000), Restart(1_000), Restart(2_000)]


def test_the_fifth_crash_on_one_offset_ends_the_command_and_names_the_offset() -> None:
    *before, last = _decisions(*[_crash(offset=42)] * 5)
    assert all(isinstance(decision, Restart) for decision in before)
    assert isinstance(last, StopRestarting)
    assert last.exit_code is ExitCode.CRASH_LOOP
    assert last.message.startswith("5 crashes on topic orders, partition 3, offset 42: map failed")
    assert "exception_handler" not in last.message  # the failed record's own message has it


def test_the_record_of_silent_deaths_is_named_without_a_handler() -> None:
    silent = Crash(
        exit_code=ExitCode.FAILED, message="killed by SIGSEGV", silent=True, partition=PARTITION, offset=7
    )  # fmt: skip
    *before, last = _decisions(*[silent] * 5)
    assert all(isinstance(decision, Restart) for decision in before)
    assert isinstance(last, StopRestarting)
    assert last.exit_code is ExitCode.CRASH_LOOP
    assert "topic orders, partition 3, offset 7: killed by SIGSEGV. Correct" in last.message
    assert "processing_exception_handler" not in last.message


def test_an_offset_that_fails_after_long_runs_still_ends_the_command() -> None:
    decision = _decisions(*[_crash(offset=42, healthy_ms=70_000)] * 5)[-1]
    assert isinstance(decision, StopRestarting)


def test_a_crash_at_a_later_offset_restarts_the_count() -> None:
    decisions = _decisions(*[_crash(offset=42)] * 4, *[_crash(offset=43)] * 4)
    assert all(isinstance(decision, Restart) for decision in decisions)


def test_partitions_are_counted_separately() -> None:
    other = Crash(
        exit_code=ExitCode.RECORD_FAILED,
        message="map failed",
        partition=TopicPartition("orders", 4),
        offset=7,
    )
    decisions = _decisions(*[_crash(offset=42), other] * 5)
    assert [isinstance(decision, StopRestarting) for decision in decisions] == [False] * 8 + [
        True
    ] * 2


@pytest.mark.parametrize("code", [ExitCode.FENCED, ExitCode.USAGE, ExitCode.MISSING_SOURCE_TOPIC])
def test_errors_that_a_restart_cannot_mend_are_not_restarted(code: ExitCode) -> None:
    assert _decisions(Crash(exit_code=code, message="no")) == [StopRestarting(code, "no")]


def test_without_restarts_the_first_crash_ends_the_command() -> None:
    _, decision = judge(CrashHistory(), _crash(offset=1), RestartSettings(enabled=False))
    assert decision == StopRestarting(ExitCode.RECORD_FAILED, "map failed")


@given(st.lists(crashes, max_size=40))
def test_every_delay_is_between_the_first_and_the_longest_delay(sequence: list[Crash]) -> None:
    for decision in _decisions(*sequence):
        assert isinstance(decision, Restart)
        assert SETTINGS.first_delay_ms <= decision.delay_ms <= SETTINGS.delay_max_ms


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=60))
def test_five_crashes_in_a_row_on_an_offset_end_the_command(
    places: list[tuple[int, int]],
) -> None:
    history = CrashHistory()
    model: dict[int, tuple[int, int]] = {}
    for partition, offset in places:
        crash = Crash(
            exit_code=ExitCode.RECORD_FAILED,
            message="",
            partition=TopicPartition("t", partition),
            offset=offset,
        )
        history, decision = judge(history, crash, SETTINGS)
        known, count = model.get(partition, (-1, 0))
        model[partition] = (offset, count + 1 if known == offset else 1)
        assert isinstance(decision, StopRestarting) == (model[partition][1] >= 5)


def test_the_history_does_not_grow_without_bound() -> None:
    history = CrashHistory()
    for partition in range(1_100):
        crash = Crash(
            exit_code=ExitCode.RECORD_FAILED,
            message="",
            partition=TopicPartition("t", partition),
            offset=0,
        )
        history, _ = judge(history, crash, SETTINGS)
    assert len(history.by_partition) == 1_000
    assert TopicPartition("t", 1_099) in history.by_partition
