"""What a store's cache holds back from downstream until a commit or until it is full."""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, Final

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.buffers.rows import column_bytes

#: So few changes take no time to order.
_FEW_CHANGES: Final = 1_000


class HeldBack:
    """What a cache holds back from downstream: the keys changed since they were forwarded last.

    For each key it is kept whether it had a value when it was forwarded last, because a row that came and went in
    between is not worth a tombstone. Keys leave in the order of their last change, as Kafka Streams' do: a commit takes
    all of them, a full cache the least recently changed ones.
    """

    def __init__(self, buffer: CommitBuffer) -> None:
        self._buffer = buffer
        #: Serialised key -> key, in the order of their last change, unless `_disordered`.
        self._keys: dict[bytes, Any] = {}
        #: Whether keys of a batch were held already and have kept their place.
        self._disordered = False
        #: Those that had no value before.
        self._new: set[bytes] = set()
        #: Those that are held since before the last commit: it has written them, so they are clean and perhaps not known any more.
        self._left: set[bytes] = set()
        self._key_bytes = 0
        #: Every change in order, as runs of serialised keys: who was changed least recently is found only when asked.
        self._changes: list[Sequence[bytes]] = []
        self._change_count = 0
        #: What operators keep of a held-back row beside its key: the value it had when it was forwarded last, and the
        #: headers of its latest change. Operators that share a store share these.
        self.old_values: dict[bytes, Any] = {}
        #: Whether `old_values` has one for each key.
        self.keeps_old_values = False
        self.headers: dict[bytes, Any] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def changed(self, key: Any, data: bytes, *, existed: bool) -> None:
        """Note a change of one key; `existed` tells whether it had a value before."""
        if data in self._keys:
            del self._keys[data]
        else:
            self._key_bytes += len(data)
            if not existed:
                self._new.add(data)
        self._keys[data] = key
        self._note((data,))

    def changed_many(self, keys: Sequence[Any], data: Sequence[bytes]) -> list[bytes]:
        """Note changes of many keys before they are made; return those that were not held yet, which are known then.

        What was held already is known and dirty, so whoever makes the changes need not look at it. What a flush has left over is
        returned as well, once.
        """
        before = len(self._keys)
        self._keys.update(zip(data, keys, strict=True))
        # Keys that were held already keep their place, so the fresh ones are the last.
        fresh = list(islice(reversed(self._keys), len(self._keys) - before))
        if len(fresh) < len(data):
            self._disordered = True
        if fresh:
            self._new.update(self._buffer.absent(fresh))
            self._key_bytes += column_bytes(fresh)
        self._note(data)
        if self._left:
            again = self._left.intersection(data)
            self._left -= again
            self._buffer.fetch(again)
            fresh.extend(again)
        return fresh

    def left_over(self) -> None:
        """Note that what is held now is held beyond a commit: what was forwarded at its flush has changed it."""
        self._left = set(self._keys)

    def _note(self, data: Sequence[bytes]) -> None:
        self._changes.append(data)
        self._change_count += len(data)
        if self._change_count > 4 * len(self._keys) + 1_000:
            self._changes = list[Sequence[bytes]]((self._by_last_change(),))
            self._change_count = len(self._changes[0])

    def _by_last_change(self) -> list[bytes]:
        """Return the held keys, the least recently changed one first."""
        latest = dict.fromkeys(chain.from_iterable(map(reversed, reversed(self._changes))))
        return [data for data in reversed(latest) if data in self._keys]

    def take(
        self, limit: int | None = None, *, in_order: bool = True
    ) -> tuple[list[bytes], list[Any], set[bytes]]:
        """Remove and return the `limit` least recently changed keys (all of them for None), in the order of their last change.

        Returns serialised keys, keys, and which of the serialised ones had no value before. Without `in_order` many keys are in
        the order of their first change, which costs less.
        """
        if limit is None or limit >= len(self._keys):
            if self._disordered and (in_order or self._change_count <= _FEW_CHANGES):
                self._keys = {data: self._keys[data] for data in self._by_last_change()}
            taken = list(self._keys), list(self._keys.values()), self._new
            self._disordered = False
            self._keys, self._new, self._key_bytes = {}, set(), 0
            self._changes, self._change_count = [], 0
            self._left = set()
            return taken
        order = self._by_last_change()
        chosen = order[:limit]
        self._changes = list[Sequence[bytes]]((order[limit:],))
        self._change_count = len(order) - limit
        keys = [self._keys.pop(data) for data in chosen]
        self._key_bytes -= sum(map(len, chosen))
        new = self._new.intersection(chosen)
        self._new -= new
        self._left.difference_update(chosen)
        return chosen, keys, new

    @property
    def size_bytes(self) -> int:
        """Return the bytes held back: keys, and values by their last known mean size."""
        return self._key_bytes + int(len(self._keys) * self._buffer.mean_value_bytes)
