"""Restart policy: restart a crashed worker after a delay, or give up. Pure.

Delays are 1 s, 2 s, 4 s, ... up to 60 s; a minute in state RUNNING resets them. Errors that a
restart can't cure (settings, fenced, missing source topic) end the command immediately.

Five crashes on one record end the command with the record's name, because endless restarts would
hide it. Crashes are counted per partition at its newest failing offset. Time does not reset that
count: a partition that fails at the same offset has made no progress.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.exit_codes import ExitCode

#: Number of partitions with crash counts; the one that crashed least recently is dropped.
_PARTITIONS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSettings:
    first_delay_ms: int = 1_000
    delay_max_ms: int = 60_000
    healthy_ms: int = 60_000
    crashes_per_offset_max: int = 5
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A worker's unplanned end.

    Attributes:
        healthy_ms: Longest time in state RUNNING.
        silent: The process died without a report; partition and offset are then those of the record
            in process, if known.
    """

    exit_code: ExitCode
    message: str
    healthy_ms: int = 0
    silent: bool = False
    partition: TopicPartition | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetCrashes:
    offset: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashHistory:
    in_a_row: int = 0
    by_partition: Mapping[TopicPartition, OffsetCrashes] = field(
        default_factory=dict[TopicPartition, OffsetCrashes]
    )


@dataclass(frozen=True, slots=True)
class Restart:
    delay_ms: int


@dataclass(frozen=True, slots=True)
class StopRestarting:
    """Decision to stop all workers and exit with `exit_code`."""

    exit_code: ExitCode
    message: str


def judge(
    history: CrashHistory, crash: Crash, settings: RestartSettings
) -> tuple[CrashHistory, Restart | StopRestarting]:
    """Return the history with this crash added, and the decision: restart or give up.

    >>> _, decision = judge(CrashHistory(), Crash(exit_code=ExitCode.FAILED, message=""), RestartSettings())
    >>> decision
    Restart(delay_ms=1000)
    """
    history = _with_crash(history, crash, settings)
    if crash.exit_code.is_final or not settings.enabled:
        return history, StopRestarting(crash.exit_code, crash.message)
    if crash.partition is not None and crash.offset is not None:
        count = history.by_partition[crash.partition].count
        if count >= settings.crashes_per_offset_max:
            return history, StopRestarting(ExitCode.CRASH_LOOP, _crash_loop(crash, count))
    delay_ms = settings.first_delay_ms * 2 ** min(history.in_a_row - 1, 32)
    return history, Restart(min(delay_ms, settings.delay_max_ms))


def _with_crash(history: CrashHistory, crash: Crash, settings: RestartSettings) -> CrashHistory:
    healthy = crash.healthy_ms >= settings.healthy_ms
    history = replace(history, in_a_row=1 if healthy else history.in_a_row + 1)
    if crash.partition is None or crash.offset is None:
        return history
    by_partition = dict(history.by_partition)
    before = by_partition.pop(crash.partition, None)
    count = before.count if before is not None and before.offset == crash.offset else 0
    by_partition[crash.partition] = OffsetCrashes(crash.offset, count + 1)
    while len(by_partition) > _PARTITIONS_MAX:
        del by_partition[next(iter(by_partition))]
    return replace(history, by_partition=by_partition)


def _crash_loop(crash: Crash, count: int) -> str:
    assert crash.partition is not None
    topic, partition = crash.partition
    # The message of a failed record has the way to skip it.
    advice = (
        ", or drop such records before the step that ends the process (no exception handler is called)"
        if crash.silent
        else ""
    )
    return (
        f"{count} crashes on topic {topic}, partition {partition}, offset {crash.offset}: "
        f"{crash.message}. Correct the program{advice}, and start again: it resumes at this record"
    )
