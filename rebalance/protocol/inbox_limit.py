"""Rate limit of inbox messages per sender, against floods.

Senders repeat every message that matters, so a drop only costs time.
"""

from typing import Final

#: Messages per incarnation: burst, and sustained rate per second.
BURST: Final = 2_000
PER_SECOND: Final = 500

#: Senders remembered; the least recent one is forgotten first.
SENDERS_MAX: Final = 10_000


class InboxLimit:
    """Token bucket per sender.

    >>> limit = InboxLimit(burst=1, per_second=1)
    >>> limit.admits("a-1", now_ms=0), limit.admits("a-1", now_ms=0), limit.admits("a-1", now_ms=1_000)
    (True, False, True)
    """

    def __init__(self, *, burst: int = BURST, per_second: int = PER_SECOND) -> None:
        self._burst = burst
        self._per_second = per_second
        #: (tokens left, at this time) by sender, least recent first.
        self._senders: dict[str, tuple[float, int]] = {}

    def admits(self, sender: str, now_ms: int) -> bool:
        tokens, counted_ms = self._senders.pop(sender, (float(self._burst), now_ms))
        tokens = min(tokens + (now_ms - counted_ms) / 1000 * self._per_second, float(self._burst))
        admitted = tokens >= 1.0
        self._senders[sender] = (tokens - 1.0 if admitted else tokens, now_ms)
        while len(self._senders) > SENDERS_MAX:
            del self._senders[next(iter(self._senders))]
        return admitted
