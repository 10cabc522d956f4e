"""Reads the control topics for the runtime, and survives whatever the cluster does: opens them, reads, opens them again.

    CLOSED ──open──▶ READING ──topics changed──▶ HELD ──the topics are as their own log says──▶ READING
       └── cluster away: again later ──┘

In HELD nothing of the log counts (SAFE_HOLD, hole H24): control topics that were deleted or made anew hold none of the
epochs that members live by. Only `tidewheel group recover`, which claims in the new topics, ends it.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from tidewheel.rebalance.group import Group, replay
from tidewheel.rebalance.ports import (
    Clock,
    ControlTopicsChangedError,
    GroupLog,
    GroupLogAwayError,
    LogRead,
)

_log: Final = logging.getLogger("tidewheel.group")

#: How soon something that failed is tried again: doubled each time, up to the maximum.
_AGAIN_MS: Final = 100
_AGAIN_MAX_MS: Final = 5_000
#: How often a group that is held looks whether it was recovered.
_HELD_LOOK_MS: Final = 1_000


class LogOpened(msgspec.Struct, frozen=True):
    """A log is read from its beginning: what was folded before counts no more.

    Attributes:
        log: The log.
        topic_ids: Of its topics.
        end: Everything up to here must have been read before anybody acts on it.
    """

    log: GroupLog
    topic_ids: Mapping[str, str]
    end: int


class LogHeld(msgspec.Struct, frozen=True):
    """The topics are not those they were; `reason` is for people."""

    reason: str


#: What a follower tells.
Followed = LogOpened | LogHeld | LogRead


class LogFollower:
    """Follows the log of a group. One thread calls `once`.

    Args:
        make_log: Makes a log, not yet open.
        inbox_back_ms: How much of the inbox is read at the start.
        clock: The runtime's.
        tell: Called with what has come.
    """

    def __init__(
        self,
        make_log: Callable[[], GroupLog],
        *,
        inbox_back_ms: int,
        clock: Clock,
        tell: Callable[[Followed], None],
    ) -> None:
        self._make_log = make_log
        self._inbox_back_ms = inbox_back_ms
        self._clock = clock
        self._tell = tell
        self._log: GroupLog | None = None
        self._held = ""
        #: Set by the runtime's thread: why the log is to be given up.
        self._hold_wanted = ""
        self._due_ms = 0
        self._again_ms = _AGAIN_MS
        self._offset = -1

    def once(self, timeout_s: float) -> float:
        """Open the log or read from it; return for how many seconds there is nothing to do."""
        if self._hold_wanted:
            self._hold(self._hold_wanted)
        left_ms = self._due_ms - self._clock.now_ms()
        if left_ms > 0:
            return left_ms / 1000
        try:
            if self._log is None:
                self._log = self._open()
            else:
                self._read(self._log, timeout_s)
        except GroupLogAwayError as error:
            _log.warning("the group's topics can't be read now, trying again: %s", error)
            self._due_ms = self._clock.now_ms() + self._again_ms
            self._again_ms = min(self._again_ms * 2, _AGAIN_MAX_MS)
        except ControlTopicsChangedError as error:
            self._hold(str(error))
        else:
            self._again_ms = _AGAIN_MS
        return 0.0

    def hold_soon(self, reason: str) -> None:
        """Give the log up until it was recovered; from any thread."""
        self._hold_wanted = reason

    def _hold(self, reason: str) -> None:
        self._hold_wanted = ""
        self.close()
        self._due_ms = self._clock.now_ms() + _HELD_LOOK_MS
        if not self._held:
            self._held = reason
            self._tell(LogHeld(reason))

    def close(self) -> None:
        """Let go of the log; idempotent."""
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def _open(self) -> GroupLog | None:
        """Return the log once it is open, or None while the group is held."""
        log = self._make_log()
        try:
            topic_ids = log.open(create=not self._held, inbox_back_ms=self._inbox_back_ms)
            end = log.state_end()
            if self._held and not self._recovered(log, topic_ids, end):
                log.close()
                self._due_ms = self._clock.now_ms() + _HELD_LOOK_MS
                return None
            if self._held:  # what was read for a look is read again by whoever folds it
                log.close()
                log = self._make_log()
                topic_ids = log.open(create=False, inbox_back_ms=self._inbox_back_ms)
        except BaseException:
            log.close()
            raise
        self._held = ""
        self._offset = -1
        self._tell(LogOpened(log, dict(topic_ids), end))
        return log

    def _recovered(self, log: GroupLog, topic_ids: Mapping[str, str], end: int) -> bool:
        """Return whether the newest claim in these topics was made for them."""
        group = Group()
        read = LogRead()
        until_ms = self._clock.now_ms() + _AGAIN_MAX_MS
        while read.state_offset < end and self._clock.now_ms() < until_ms:
            read = log.poll(0.2)
            group = replay((each.record for each in read.records if each.record), group)
        return group.leader_epoch > 0 and dict(group.topic_ids) == dict(topic_ids)

    def _read(self, log: GroupLog, timeout_s: float) -> None:
        read = log.poll(timeout_s)
        if read.records or read.messages or read.dropped or read.state_offset != self._offset:
            self._offset = read.state_offset
            self._tell(read)
