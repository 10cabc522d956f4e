"""Group log reader: opens the control topics, reads them, reopens them after failures.

    CLOSED ──open──▶ READING ──topics changed──▶ HELD ──the topics are as their own log says──▶ READING
       └── cluster away: again later ──┘

In HELD the process ignores the log (SAFE_HOLD, H24): recreated topics lack the group's epochs. Only
`tidewheel group recover` ends it, by a claim in the new topics.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.runtime.ports import (
    ControlTopicsChangedError,
    GroupLog,
    GroupLogAwayError,
    LogRead,
    MonotonicClock,
)

_log: Final = logging.getLogger("tidewheel.group")

_AGAIN_MS: Final = 100
_AGAIN_MAX_MS: Final = 5_000
_HELD_CHECK_MS: Final = 1_000


class LogOpened(msgspec.Struct, frozen=True):
    """Event: the log is opened and read from its start; the group read before is void."""

    log: GroupLog
    topic_ids: Mapping[str, str]
    end: int  # Offset up to which the runtime must read before it acts.


class LogHeld(msgspec.Struct, frozen=True):
    """Event: the control topics were deleted or recreated."""

    reason: str


Followed = LogOpened | LogHeld | LogRead


class LogFollower:
    """Reader of a group's log; one thread calls `once`.

    `make_log` returns an unopened log; `deliver` receives the events.
    """

    def __init__(
        self,
        make_log: Callable[[], GroupLog],
        *,
        inbox_back_ms: int,
        clock: MonotonicClock,
        deliver: Callable[[Followed], None],
    ) -> None:
        self._make_log = make_log
        self._inbox_back_ms = inbox_back_ms
        self._clock = clock
        self._deliver = deliver
        self._log: GroupLog | None = None
        self._held = ""
        #: Set by the runtime's thread: reason to hold.
        self._hold_wanted = ""
        self._due_ms = 0
        self._again_ms = _AGAIN_MS
        self._offset = -1

    def run_once(self, timeout_s: float) -> float:
        """Open or read the log; return the seconds to wait before the next call."""
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
        """Make the next `run_once` stop reading until the group is recovered; thread-safe."""
        self._hold_wanted = reason

    def _hold(self, reason: str) -> None:
        self._hold_wanted = ""
        self.close()
        self._due_ms = self._clock.now_ms() + _HELD_CHECK_MS
        if not self._held:
            self._held = reason
            self._deliver(LogHeld(reason))

    def close(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def _open(self) -> GroupLog | None:
        log = self._make_log()
        try:
            topic_ids = log.open(create=not self._held, inbox_back_ms=self._inbox_back_ms)
            end = log.state_end()
            if self._held and not self._recovered(log, topic_ids, end):
                log.close()
                self._due_ms = self._clock.now_ms() + _HELD_CHECK_MS
                return None
            if self._held:  # opened again, because the check consumed its records
                log.close()
                log = self._make_log()
                topic_ids = log.open(create=False, inbox_back_ms=self._inbox_back_ms)
        except BaseException:
            log.close()
            raise
        self._held = ""
        self._offset = -1
        self._deliver(LogOpened(log, dict(topic_ids), end))
        return log

    def _recovered(self, log: GroupLog, topic_ids: Mapping[str, str], end: int) -> bool:
        group = Group()
        read = LogRead()
        until_ms = self._clock.now_ms() + _AGAIN_MAX_MS
        while read.state_offset < end and self._clock.now_ms() < until_ms:
            read = log.poll(0.2)
            group = replay((logged.record for logged in read.records if logged.record), group)
        return group.leader_epoch > 0 and dict(group.topic_ids) == dict(topic_ids)

    def _read(self, log: GroupLog, timeout_s: float) -> None:
        read = log.poll(timeout_s)
        if read.records or read.messages or read.dropped or read.state_offset != self._offset:
            self._offset = read.state_offset
            self._deliver(read)
