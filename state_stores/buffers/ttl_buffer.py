"""A commit buffer of a key-value store whose rows end: at the timestamp of the record that set them, plus the store's ttl.

Time is the largest timestamp the store has seen (`observe`, `put`). An ended row is never read; it is deleted, with a
tombstone in the changelog, by a sweep at commits that looks at a bounded number of rows, and only when one may have
ended. The ttl is that of the store now: it may be changed, and holds for the rows that are there.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer
from tidewheel.state_stores.layout.envelope import unseal
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

#: A commit looks at so many rows on disk, and at so many more for each one it writes.
_SWEPT: Final = 1_000
_SWEPT_PER_ROW: Final = 4

_NEVER: Final = 1 << 64


class TtlBuffer(TimedBuffer):
    """Buffered access to a family whose rows end after `spec.ttl_ms`."""

    def __init__(self, spec: StoreSpec, database: Database, *, topic: str, keep_bytes: int) -> None:
        super().__init__(spec, database, topic=topic, keep_bytes=keep_bytes)
        assert spec.ttl_ms is not None, "made for stores with a ttl"
        self._ttl_ms = spec.ttl_ms
        #: When the first of all rows may have ended.
        self._due_ms = 0
        #: Where the sweep goes on, and the oldest timestamp since it began at the first key.
        self._cursor: bytes | None = None
        self._oldest_ms = _NEVER

    def _has_ended(self, timestamp: int) -> bool:
        return timestamp + self._ttl_ms <= self.observed_stream_time_ms

    def get(self, key: bytes) -> Any:
        """Return the value, or None if there is none or it has ended."""
        value = self.peek(key)
        return None if value is None or self._has_ended(self.timestamps[key]) else value

    def get_many(self, keys: Sequence[bytes]) -> list[Any]:
        """Return the values of many keys, in their order."""
        self.fetch(keys)
        return list(map(self.get, keys))

    def are_decoded(self, keys: Collection[bytes]) -> bool:  # noqa: ARG002 - whatever they are
        """Return False: a value that is read directly may have ended."""
        return False

    def exists(self, key: bytes) -> bool:
        """Return whether a key has a value that has not ended."""
        return super().exists(key) and not self._has_ended(self.timestamps[key])

    def timestamp(self, key: bytes) -> int:
        """Return the timestamp of a value that `get` or `fetch` made known; -1 for an absent or ended one."""
        timestamp = super().timestamp(key)
        return -1 if self._has_ended(timestamp) else timestamp

    def iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any, int]]:
        """Yield (key, value, timestamp) of lower <= key < upper that have not ended by now."""
        alive_from = self.observed_stream_time_ms - self._ttl_ms
        return (
            row for row in super().iterate(lower, upper, reverse=reverse) if row[2] > alive_from
        )

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        """Set a value, or delete it with None; its timestamp is also how far time has come."""
        super().put(key, value, timestamp)
        self.observe(timestamp)
        if value is not None:
            self._oldest_ms = min(self._oldest_ms, timestamp)
            self._due_ms = min(self._due_ms, timestamp + self._ttl_ms)

    def put_all(
        self,
        keys: Sequence[bytes],  # noqa: ARG002 - the signature of any buffer
        values: Sequence[Any],  # noqa: ARG002 - as above
        timestamps: Sequence[int],  # noqa: ARG002 - as above
    ) -> bool:
        """Return False: each is judged by the time it brings."""
        return False

    def has_changes(self) -> bool:
        """Delete ended rows; return whether a commit has anything to write."""
        if self._due_ms <= self.observed_stream_time_ms:
            self._sweep(_SWEPT + _SWEPT_PER_ROW * len(self.dirty))
        return super().has_changes()

    def _sweep(self, limit: int) -> None:
        """Delete the rows that have ended among the next `limit` on disk."""
        rows = list(islice(self._database.iterate(self._family, self._cursor, None), limit))
        for key, data in rows:
            timestamp = unseal(data)[1]
            if key in self.dirty:
                continue
            if self._has_ended(timestamp):
                super().put(key, None, self.observed_stream_time_ms)
            else:
                self._oldest_ms = min(self._oldest_ms, timestamp)
        if len(rows) == limit:
            self._cursor = rows[-1][0] + b"\x00"
            return
        self._cursor = None
        self._due_ms = self._oldest_ms + self._ttl_ms
        # Those put since the last commit are on disk when the next round begins.
        self._oldest_ms = _NEVER

    def _observe_rows(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        self.observe(max((unseal(data)[1] for _, data in rows if data is not None), default=-1))
        self._due_ms = 0

    def discard(self) -> None:
        """Forget everything, also uncommitted changes: the next read sees the database."""
        super().discard()
        self._cursor = None
        self._due_ms = 0
