"""Record cache: changed keys that wait for a commit or a full cache before they go downstream."""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, Final

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.buffers.rows import column_bytes

_FEW_CHANGES: Final = 1_000


class RecordCache:
    """Changed keys, in the order of their last change.

    A row that is created and deleted before it is forwarded needs no tombstone downstream.
    """

    def __init__(self, buffer: CommitBuffer) -> None:
        self._buffer = buffer
        #: Serialised key -> key, in the order of their last change unless `_disordered`.
        self._keys: dict[bytes, Any] = {}
        #: True if a batch changed keys already cached: they kept their old place in `_keys`.
        self._disordered = False
        self._new: set[bytes] = set()
        #: Keys cached before the last commit. It made their rows clean: the buffer may drop these,
        #: and `changed_many` loads them again.
        self._left: set[bytes] = set()
        self._key_bytes = 0
        #: Changed keys, call by call; `_by_last_change` sorts them only on demand.
        self._changes: list[Sequence[bytes]] = []
        self._change_count = 0
        #: Last forwarded value per row, for all operators of the store.
        self.old_values: dict[bytes, Any] = {}
        self.keeps_old_values = False
        self.headers: dict[bytes, Any] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def changed(self, key: Any, data: bytes, *, existed: bool) -> None:
        if data in self._keys:
            del self._keys[data]
        else:
            self._key_bytes += len(data)
            if not existed:
                self._new.add(data)
        self._keys[data] = key
        self._track((data,))

    def changed_many(self, keys: Sequence[Any], data: Sequence[bytes]) -> list[bytes]:
        """Track changes before the caller makes them; load and return keys not cached yet.

        It treats keys cached since before a commit alike: the buffer may lack their rows.
        """
        before = len(self._keys)
        self._keys.update(zip(data, keys, strict=True))
        fresh = list(islice(reversed(self._keys), len(self._keys) - before))
        if len(fresh) < len(data):
            self._disordered = True
        if fresh:
            self._new.update(self._buffer.absent(fresh))
            self._key_bytes += column_bytes(fresh)
        self._track(data)
        if self._left:
            again = self._left.intersection(data)
            self._left -= again
            self._buffer.fetch(again)
            fresh.extend(again)
        return fresh

    def mark_committed(self) -> None:
        self._left = set(self._keys)

    def _track(self, data: Sequence[bytes]) -> None:
        self._changes.append(data)
        self._change_count += len(data)
        if self._change_count > 4 * len(self._keys) + 1_000:
            self._changes = list[Sequence[bytes]]((self._by_last_change(),))
            self._change_count = len(self._changes[0])

    def _by_last_change(self) -> list[bytes]:
        latest = dict.fromkeys(chain.from_iterable(map(reversed, reversed(self._changes))))
        return [data for data in reversed(latest) if data in self._keys]

    def pop(
        self, limit: int | None = None, *, in_order: bool = True
    ) -> tuple[list[bytes], list[Any], set[bytes]]:
        """Remove and return the `limit` least recently changed keys; None: all.

        Returns serialised keys, keys, and the serialised keys that had no value before.
        """
        if limit is None or limit >= len(self._keys):
            if self._disordered and (in_order or self._change_count <= _FEW_CHANGES):
                self._keys = {data: self._keys[data] for data in self._by_last_change()}
            changes = list(self._keys), list(self._keys.values()), self._new
            self._disordered = False
            self._keys, self._new, self._key_bytes = {}, set(), 0
            self._changes, self._change_count = [], 0
            self._left = set()
            return changes
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
        return self._key_bytes + int(len(self._keys) * self._buffer.mean_value_bytes)
