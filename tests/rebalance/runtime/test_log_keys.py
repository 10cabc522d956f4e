"""Obsolete keys of the state topic (H4)."""

from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    LeaderClaim,
    MemberRecord,
    TargetRecord,
    record_key,
)
from tidewheel.rebalance.runtime.log_keys import LogKeys
from tidewheel.rebalance.runtime.ports import LoggedRecord


def _track(keys: LogKeys, *records: AnyRecord) -> Group:
    for record in records:
        keys.add(LoggedRecord(record_key(record).decode(), record))
    return replay(records)


def _member(epoch: int, name: str, phase: str, rejoin_ms: int = 0) -> MemberRecord:
    return MemberRecord(
        leader_epoch=epoch, member=name, incarnation=f"{name}-1", phase=phase, rejoin_ms=rejoin_ms
    )


def test_H4_only_records_of_earlier_leaders_are_stale() -> None:
    keys = LogKeys()
    group = _track(
        keys,
        LeaderClaim(leader_epoch=1, leader="p"),
        _member(1, "a", "ACTIVE"),
        LeaderClaim(leader_epoch=2, leader="q"),
        TargetRecord(leader_epoch=2, group_epoch=1, owners={}),
        _member(2, "a", "ACTIVE"),
    )
    assert keys.stale(group, limit=10) == ["1/claim", "1/member/a/a-1"]
    assert keys.stale(group, limit=1) == ["1/claim"]


def test_records_of_members_that_left_are_stale_unless_they_are_awaited() -> None:
    keys = LogKeys()
    group = _track(
        keys,
        LeaderClaim(leader_epoch=1, leader="p"),
        _member(1, "gone", "GONE"),
        _member(1, "awaited", "GONE", rejoin_ms=60_000),
        _member(1, "here", "ACTIVE"),
    )
    assert keys.stale(group, limit=10) == ["1/member/gone/gone-1"]


def test_a_tombstone_is_not_written_twice_and_a_newer_claim_makes_no_key_stale() -> None:
    keys = LogKeys()
    group = _track(
        keys, LeaderClaim(leader_epoch=1, leader="p"), LeaderClaim(leader_epoch=2, leader="q")
    )
    keys.add(LoggedRecord("1/claim", None, tombstone=True))
    keys.add(LoggedRecord("3/claim", None))
    keys.add(LoggedRecord("who/knows", None))
    assert keys.stale(group, limit=10) == []
