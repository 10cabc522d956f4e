"""Rate limit per sender (H23)."""

from tidewheel.rebalance.protocol import inbox_limit
from tidewheel.rebalance.protocol.inbox_limit import InboxLimit


def test_H23_messages_beyond_the_burst_are_rejected() -> None:
    limit = InboxLimit(burst=5, per_second=10)
    assert [limit.admits("a", 0) for _ in range(6)] == [True] * 5 + [False]
    assert [limit.admits("a", 100) for _ in range(2)] == [True, False]
    assert [limit.admits("a", 60_000) for _ in range(6)] == [True] * 5 + [False]


def test_H23_each_sender_has_its_own_limit() -> None:
    limit = InboxLimit(burst=1, per_second=1)
    assert [limit.admits("a", 0) for _ in range(3)] == [True, False, False]
    assert limit.admits("b", 0)


def test_H23_memory_does_not_grow_with_forged_senders() -> None:
    limit = InboxLimit(burst=1, per_second=1)
    for number in range(inbox_limit.SENDERS_MAX + 100):
        limit.admits(f"s{number}", 0)
    assert len(limit._senders) == inbox_limit.SENDERS_MAX
    assert not limit.admits(f"s{inbox_limit.SENDERS_MAX + 99}", 0)
