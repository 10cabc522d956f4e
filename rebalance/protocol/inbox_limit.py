"""How many messages a sender may put into the inbox before the rest is dropped (hole H23); pure.

A member says a few messages each heartbeat, and one for each of its tasks when they start. What is dropped is no loss:
whatever counts is said again.
"""

from typing import Final

#: Messages of one incarnation: this many at once, and so many a second for long.
BURST: Final = 2_000
PER_SECOND: Final = 500

#: Senders that are remembered; when there are more, those heard longest ago are forgotten.
SENDERS_MAX: Final = 10_000


class InboxLimit:
    """A token bucket for each sender.

    >>> limit = InboxLimit(burst=1, per_second=1)
    >>> limit.admits("a-1", now_ms=0), limit.admits("a-1", now_ms=0), limit.admits("a-1", now_ms=1_000)
    (True, False, True)
    """

    def __init__(self, *, burst: int = BURST, per_second: int = PER_SECOND) -> None:
        self._burst = burst
        self._per_second = per_second
        #: Tokens left and when they were counted, by sender; the one heard last is at the end.
        self._senders: dict[str, tuple[float, int]] = {}

    def admits(self, sender: str, now_ms: int) -> bool:
        """Return whether one more message of this sender is let in now."""
        left, counted_ms = self._senders.pop(sender, (float(self._burst), now_ms))
        left = min(left + (now_ms - counted_ms) / 1000 * self._per_second, float(self._burst))
        admitted = left >= 1.0
        self._senders[sender] = (left - 1.0 if admitted else left, now_ms)
        while len(self._senders) > SENDERS_MAX:
            del self._senders[next(iter(self._senders))]
        return admitted
