"""Detection of live members by listening to the inbox; uses the listener's clock only."""

from collections.abc import Callable, Mapping
from typing import Final

from tidewheel.rebalance.protocol.messages import Beat, JoinGroup
from tidewheel.rebalance.protocol.records import MemberRecord
from tidewheel.streams.group.topics import GroupTopics
from tidewheel.tasks.kafka.ports import Clock

#: Duration of listening, as a multiple of the session timeout. A live member sends at least two
#: heartbeats per session timeout.
_TIMEOUTS: Final = 2
#: Milliseconds to listen for other members after the first heartbeat.
_OTHERS_MS: Final = 1_000
_POLL_S: Final = 0.1


def members_heard(
    topics: GroupTopics,
    members: Mapping[str, MemberRecord],
    clock: Clock,
    pause: Callable[[float], bool],
) -> frozenset[str]:
    """Return the incarnations heard from now on, within two session timeouts.

    Args:
        topics: Their inbox must not have been read yet.
        pause: Waits for some seconds; returns True to stop.
    """
    if not members:
        return frozenset()
    topics.listen()
    incarnations: set[str] = set()
    until_ms = _now_ms(clock) + _TIMEOUTS * max(
        record.session_timeout_ms for record in members.values()
    )
    while len(incarnations) < len(members) and _now_ms(clock) < until_ms and not pause(_POLL_S):
        had_any = bool(incarnations)
        for _, message in topics.new_messages():
            # Other messages may name dead members.
            if isinstance(message, Beat | JoinGroup) and message.incarnation in members:
                incarnations.add(message.incarnation)
        if incarnations and not had_any:
            until_ms = min(until_ms, _now_ms(clock) + _OTHERS_MS)
    return frozenset(incarnations)


def _now_ms(clock: Clock) -> int:
    return int(clock.monotonic_s() * 1000)
