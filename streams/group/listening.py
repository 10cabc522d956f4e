"""Who of a group lives, by what is said from now on: the only clock is the listener's own, and only how long it listens counts (H22)."""

from collections.abc import Callable, Mapping
from typing import Final

from tidewheel.rebalance.protocol.messages import Beat, JoinGroup
from tidewheel.rebalance.protocol.records import MemberRecord
from tidewheel.streams.group.topics import GroupTopics
from tidewheel.tasks.ports import Clock

#: A member that lives speaks twice within its session timeout at least; a silence of so many is not a late word.
_TIMEOUTS: Final = 2
#: Once somebody was heard, the others are waited for so long, to be named too.
_OTHERS_MS: Final = 1_000
_LOOK_S: Final = 0.1


def speaking_now(
    topics: GroupTopics,
    members: Mapping[str, MemberRecord],
    clock: Clock,
    pause: Callable[[float], bool],
) -> frozenset[str]:
    """Return which of these members, by incarnation, speak from now on; listens for two session timeouts at most.

    Args:
        topics: Of the group; the inbox must not have been read yet.
        members: Whom to listen for, by incarnation.
        clock: How long was listened is measured by it.
        pause: Waits for some seconds; True if nobody wants to know any more.
    """
    if not members:
        return frozenset()
    topics.listen()
    heard: set[str] = set()
    until_ms = _now_ms(clock) + _TIMEOUTS * max(
        record.session_timeout_ms for record in members.values()
    )
    while len(heard) < len(members) and _now_ms(clock) < until_ms and not pause(_LOOK_S):
        knew_somebody = bool(heard)
        for _, message in topics.said():
            # What is said of a dead member is said in its name as well.
            if isinstance(message, Beat | JoinGroup) and message.incarnation in members:
                heard.add(message.incarnation)
        if heard and not knew_somebody:
            until_ms = min(until_ms, _now_ms(clock) + _OTHERS_MS)
    return frozenset(heard)


def _now_ms(clock: Clock) -> int:
    return int(clock.monotonic_s() * 1000)
