"""Which keys of the state topic nobody needs any more; pure.

Whoever reads the log folds from the newest claim and its snapshot on. So what earlier leaders wrote can go as soon as
the snapshot is there, and so can members of this epoch that have gone for good.
"""

from typing import Final

from tidewheel.rebalance.group import Group, highest_claim
from tidewheel.rebalance.ports import LoggedRecord
from tidewheel.rebalance.protocol.records import SNAPSHOT_PART, MemberRecord

#: No leader's epoch has as many digits.
_DIGITS_MAX: Final = 20


class LogKeys:
    """The keys that have a value in the state topic, as far as it was read.

    >>> keys = LogKeys()
    >>> keys.note(LoggedRecord("1/target", None))
    >>> keys.note(LoggedRecord("2/target", None))
    >>> keys.stale(Group(leader_epoch=2), limit=10)
    ['1/target']
    """

    def __init__(self) -> None:
        #: Incarnation by key for members' keys, None for all others; in the order of the log.
        self._keys: dict[str, str | None] = {}

    def note(self, logged: LoggedRecord) -> None:
        """Take in a record of the log."""
        self._keys.pop(logged.key, None)
        if not logged.tombstone:
            record = logged.record
            self._keys[logged.key] = (
                record.incarnation if isinstance(record, MemberRecord) else None
            )

    def stale(self, group: Group, *, limit: int) -> list[str]:
        """Return up to `limit` keys that add nothing to the group, the oldest first."""
        current = f"{group.leader_epoch}/"
        snapshot = f"{current}{SNAPSHOT_PART.decode()}/"
        # A snapshot counts as a whole or not at all; and whom it names, only a later record can take away again.
        named = {each for key, each in self._keys.items() if key.startswith(snapshot)}
        found: list[str] = []
        for key, incarnation in self._keys.items():
            if len(found) == limit:
                break
            gone = incarnation is not None and not (
                incarnation in group.members or incarnation in named
            )
            epoch = _epoch_of(key)
            # An epoch that no claim can have reached (`group.refusal_of`).
            foreign = epoch is not None and not (
                group.leader_epoch <= epoch <= highest_claim(group)
            )
            if foreign or (gone and key.startswith(current)):
                found.append(key)
        return found


def _epoch_of(key: str) -> int | None:
    """Return the leader epoch a key begins with; None for a key that no leader of this version writes."""
    text, _, _ = key.partition("/")
    return int(text) if text.isdecimal() and len(text) < _DIGITS_MAX else None
