"""Commit scheduling: decides when a worker prepares, extends and completes a commit. Pure."""

import math
from enum import Enum
from typing import Final, Protocol

#: An early commit starts at most this share of a commit interval before its deadline.
_EARLY: Final = 0.25
#: With more uncommitted bytes a commit is not early: merging its rows with later ones costs time.
_EARLY_BYTES_MAX: Final = 4 * 1024 * 1024
#: Minimum seconds for which the loop processes records before it waits for a commit's answer.
_AHEAD_S: Final = 0.1
#: A commit shorter than this share of the interval does not delay the next deadline.
_SHORT: Final = 0.5
#: A commit may start this many seconds late without delaying the next deadline.
_LATE_S: Final = 0.005
#: Early commits pause if a larger share of cached keys than this is forwarded twice: when the early
#: commit flushes caches, and again when its extension does.
_TWICE: Final = 0.05
#: That share is of at least this many keys, so a few cause no pause.
_KEYS_MIN: Final = 100
#: Length of a pause of early commits, in commit intervals.
_PAUSE_COMMITS: Final = 100


class CommitState(Enum):
    """State of a worker's commits; at most one commit is in progress."""

    NONE = "none"
    #: Prepared early; brokers have not answered the request with its offsets: extending would wait.
    OPENING = "opening"
    #: Prepared early; it can be extended.
    OPEN = "open"
    #: Nothing can be added; the brokers have not answered.
    COMMITTING = "committing"
    #: The brokers have answered: completing it waits for none.
    ANSWERED = "answered"


class Step(Enum):
    WAIT = "wait"
    PREPARE = "prepare"
    PREPARE_EARLY = "prepare early"
    EXTEND = "extend"
    COMPLETE = "complete"


class PendingWork(Protocol):
    @property
    def must_commit(self) -> bool:
        """Return True if a processor requested a commit, or too much memory is uncommitted."""
        ...

    @property
    def can_run_ahead(self) -> bool: ...

    @property
    def keeps_up(self) -> bool:
        """Return True if the tasks wait for input."""
        ...

    @property
    def cached_bytes(self) -> int: ...

    @property
    def uncommitted_bytes(self) -> int: ...


class EarlyCommitLimit:
    """Limit of keys that record caches forward twice; pauses early commits above it.

    >>> limit = EarlyCommitLimit(interval_s=0.1)
    >>> limit.record(keys=1_000, twice=2, now_s=5.0)
    >>> limit.allows(5.1)
    True
    >>> limit.record(keys=10, twice=9, now_s=5.1)
    >>> limit.allows(5.2), limit.allows(15.2)
    (False, True)
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._paused_until_s = 0.0
        self._keys, self._twice = 0, 0

    def allows(self, now_s: float) -> bool:
        return now_s >= self._paused_until_s

    def record(self, *, keys: int, twice: int, now_s: float) -> None:
        self._keys += keys
        self._twice += twice
        if self._twice > _TWICE * max(self._keys, _KEYS_MIN):
            self.pause(now_s)
        elif self._keys >= _KEYS_MIN:
            self._keys, self._twice = 0, 0

    def pause(self, now_s: float) -> None:
        self._paused_until_s = now_s + _PAUSE_COMMITS * self._interval_s
        self._keys, self._twice = 0, 0


def early_start_s(early_ms: int, interval_ms: int) -> float:
    return min(early_ms, interval_ms * _EARLY) / 1000


class CommitSchedule:
    """Deadlines of a worker's commits, and rules for the next step. Outlives tasks' restarts.

    Attributes:
        due_s: Deadline of the next commit; infinite while a commit that can't be extended is in
            progress, unless another is requested.
        ahead_until_s: Time at which the loop stops processing and waits for the commit in progress.
            Without it, a busy worker collects more in each commit, so commits take ever longer.
    """

    def __init__(self, interval_ms: int) -> None:
        self._interval_s = interval_ms / 1000
        self._limit = EarlyCommitLimit(self._interval_s)
        self.due_s = 0.0
        self.ahead_until_s = math.inf
        self._started_due_s = 0.0
        #: Seconds before the deadline at which an early commit starts; 0: none.
        self._early_s = 0.0
        #: Deadline for which an early commit was already attempted.
        self._early_tried_s = math.inf

    def restart(self, now_s: float, *, early_s: float) -> None:
        self.due_s, self.ahead_until_s = now_s + self._interval_s, math.inf
        self._early_s = early_s

    def request(self) -> None:
        self.due_s = 0.0

    def decide(  # noqa: PLR0911 - one row of the table each
        self, now_s: float, state: CommitState, work: PendingWork
    ) -> Step:
        """Return the step of the first table row that applies (ARCHITECTURE.md)."""
        is_due = now_s >= self.due_s
        match state:
            case CommitState.NONE if is_due or work.must_commit:
                return Step.PREPARE
            case CommitState.NONE if self._may_start_early(now_s, work):
                return Step.PREPARE_EARLY
            case CommitState.ANSWERED:
                return Step.COMPLETE
            case CommitState.OPENING | CommitState.OPEN | CommitState.COMMITTING if (
                now_s >= self.ahead_until_s or work.must_commit
            ):
                return Step.COMPLETE
            case CommitState.OPEN if is_due and work.can_run_ahead:
                return Step.EXTEND
            case CommitState.OPEN | CommitState.COMMITTING if is_due:
                return Step.COMPLETE
            case _:
                return Step.WAIT

    def wait_s(self, now_s: float, state: CommitState, work: PendingWork) -> float:
        """Return seconds until a step is due; infinite if only brokers cause it."""
        if state is CommitState.OPENING:
            return math.inf
        if state is CommitState.NONE and self._may_be_early(now_s, work):
            return self.due_s - self._early_s - now_s
        return self.due_s - now_s

    def _may_start_early(self, now_s: float, work: PendingWork) -> bool:
        return now_s >= self.due_s - self._early_s and self._may_be_early(now_s, work)

    def _may_be_early(self, now_s: float, work: PendingWork) -> bool:
        if self._early_s <= 0 or self._early_tried_s == self.due_s or not work.keeps_up:
            return False
        cached_bytes = work.cached_bytes
        return (
            work.can_run_ahead
            and (not cached_bytes or self._limit.allows(now_s))
            # Cached records become output when they are flushed.
            and work.uncommitted_bytes + cached_bytes <= _EARLY_BYTES_MAX
        )

    def record_prepare(self, start_s: float, now_s: float, *, is_empty: bool) -> None:
        self._record_start(start_s)
        if is_empty:
            self.due_s = now_s + self._interval_s
        else:
            self.due_s, self.ahead_until_s = math.inf, self._ahead_end_s(start_s)

    def record_early(self, start_s: float) -> None:
        self._record_start(start_s)
        self._early_tried_s, self.ahead_until_s = self.due_s, self._ahead_end_s(start_s)

    def record_extend(self, start_s: float, now_s: float, *, keys: int, twice: int) -> None:
        self._record_start(start_s)
        self.due_s, self.ahead_until_s = math.inf, self._ahead_end_s(now_s)
        self._limit.record(keys=keys, twice=twice, now_s=now_s)

    def record_complete(
        self, now_s: float, took_s: float, *, keeps_up: bool, was_early: bool
    ) -> None:
        """Record a complete commit; `was_early` if it was prepared early and never extended.

        Such a commit flushed caches too soon for nothing, so early commits pause.
        The next interval starts at this commit's deadline, so results come as often as configured.
        After a long commit of a busy worker it starts now: else it would do little but commit.
        """
        if was_early:
            self._limit.pause(now_s)
        is_short = keeps_up or took_s < self._interval_s * _SHORT
        next_s = self._interval_s + (self._started_due_s if is_short else now_s)
        self.due_s, self.ahead_until_s = min(self.due_s, next_s), math.inf

    def _record_start(self, start_s: float) -> None:
        self._started_due_s = min(start_s, max(self.due_s, start_s - _LATE_S))

    def _ahead_end_s(self, now_s: float) -> float:
        return now_s + max(self._interval_s, _AHEAD_S)
