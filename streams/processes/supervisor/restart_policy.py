"""Decides what becomes of a worker that died: start it again after a while, or give up. Pure.

A worker is started again after 1 s, then 2 s, 4 s, ... up to 60 s; a healthy minute makes the next wait short again. A
record that brings a worker down five times is named and ends it all: to try for ever would hide it. Errors that a
restart can't help (settings, fenced, missing source topic) end it at once.

Crashes are counted per partition at its newest failing offset. Time does not reset that count: as long as a partition
fails at the same offset it has not moved at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.exit_codes import ExitCode

#: Partitions whose crashes are remembered; far more than can fail one after the other without an end.
_PARTITIONS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSettings:
    """How patient a supervisor is."""

    first_delay_ms: int = 1_000
    delay_max_ms: int = 60_000
    healthy_ms: int = 60_000
    crashes_per_offset_max: int = 5
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """How a worker ended.

    `healthy_ms` is how long it had been running (in state RUNNING) by then. `silent` says that its process died without a
    word; partition and offset are then those of the record it had in hand, if that is known.
    """

    exit_code: ExitCode
    message: str
    healthy_ms: int = 0
    silent: bool = False
    partition: TopicPartition | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetCrashes:
    """How often a worker went down at one offset of a partition."""

    offset: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashHistory:
    """What the policy remembers of a slot's crashes."""

    in_a_row: int = 0
    by_partition: Mapping[TopicPartition, OffsetCrashes] = field(
        default_factory=dict[TopicPartition, OffsetCrashes]
    )


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the worker again after `delay_ms`."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop everything and leave with `exit_code`."""

    exit_code: ExitCode
    message: str


def judge(
    history: CrashHistory, crash: Crash, settings: RestartSettings
) -> tuple[CrashHistory, Restart | GiveUp]:
    """Return what to do about a crash, and the history with it.

    >>> _, decision = judge(CrashHistory(), Crash(exit_code=ExitCode.FAILED, message=""), RestartSettings())
    >>> decision
    Restart(delay_ms=1000)
    """
    history = _remembered(history, crash, settings)
    if crash.exit_code.is_final or not settings.enabled:
        return history, GiveUp(crash.exit_code, crash.message)
    if crash.partition is not None and crash.offset is not None:
        count = history.by_partition[crash.partition].count
        if count >= settings.crashes_per_offset_max:
            return history, GiveUp(ExitCode.CRASH_LOOP, _crash_loop(crash, count))
    delay_ms = settings.first_delay_ms * 2 ** min(history.in_a_row - 1, 32)
    return history, Restart(min(delay_ms, settings.delay_max_ms))


def _remembered(history: CrashHistory, crash: Crash, settings: RestartSettings) -> CrashHistory:
    healthy = crash.healthy_ms >= settings.healthy_ms
    history = replace(history, in_a_row=1 if healthy else history.in_a_row + 1)
    if crash.partition is None or crash.offset is None:
        return history
    by_partition = dict(history.by_partition)
    before = by_partition.pop(crash.partition, None)
    again = before is not None and before.offset == crash.offset
    by_partition[crash.partition] = OffsetCrashes(
        crash.offset, before.count + 1 if before is not None and again else 1
    )
    # The one that failed least recently is forgotten first: partitions are kept in the order they last failed.
    while len(by_partition) > _PARTITIONS_MAX:
        del by_partition[next(iter(by_partition))]
    return replace(history, by_partition=by_partition)


def _crash_loop(crash: Crash, count: int) -> str:
    assert crash.partition is not None
    topic, partition = crash.partition
    way_out = (
        "leave such records out before the step that ends the process (no exception handler is asked)"
        if crash.silent
        else 'let it skip such records (processing_exception_handler="continue", with dead_letter_queue_topic to keep them)'
    )
    return (
        f"{count} crashes on topic {topic}, partition {partition}, offset {crash.offset}: {crash.message}; correct the "
        f"program, or {way_out}, and start again: it resumes at this record"
    )
