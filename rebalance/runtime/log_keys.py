"""Obsolete keys of the state topic.

Readers start at the newest claim and its snapshot. So the leader can delete records of earlier
leaders, and of this epoch's members that are gone for good.
"""

from typing import Final

from tidewheel.rebalance.protocol.group import Group, highest_claim
from tidewheel.rebalance.protocol.records import SNAPSHOT_PART, MemberRecord
from tidewheel.rebalance.runtime.ports import LoggedRecord

_DIGITS_MAX: Final = 20


class LogKeys:
    """Keys with a value in the state topic.

    >>> keys = LogKeys()
    >>> keys.add(LoggedRecord("1/target", None))
    >>> keys.add(LoggedRecord("2/target", None))
    >>> keys.stale(Group(leader_epoch=2), limit=10)
    ['1/target']
    """

    def __init__(self) -> None:
        #: Incarnation by key of a member record, None by other keys; in log order.
        self._keys: dict[str, str | None] = {}

    def add(self, logged: LoggedRecord) -> None:
        self._keys.pop(logged.key, None)
        if not logged.tombstone:
            record = logged.record
            self._keys[logged.key] = (
                record.incarnation if isinstance(record, MemberRecord) else None
            )

    def stale(self, group: Group, *, limit: int) -> list[str]:
        """Return up to `limit` obsolete keys, oldest first."""
        current = f"{group.leader_epoch}/"
        snapshot = f"{current}{SNAPSHOT_PART.decode()}/"
        # A member in this epoch's snapshot needs its later GONE record: else readers would see the
        # member again.
        named = {incarnation for key, incarnation in self._keys.items() if key.startswith(snapshot)}
        keys: list[str] = []
        for key, incarnation in self._keys.items():
            if len(keys) == limit:
                break
            gone = incarnation is not None and not (
                incarnation in group.members or incarnation in named
            )
            epoch = _epoch_of(key)
            foreign = epoch is not None and not (
                group.leader_epoch <= epoch <= highest_claim(group)
            )
            if foreign or (gone and key.startswith(current)):
                keys.append(key)
        return keys


def _epoch_of(key: str) -> int | None:
    text, _, _ = key.partition("/")
    return int(text) if text.isdecimal() and len(text) < _DIGITS_MAX else None
