"""Commit buffer of a key-value store with a TTL after each record's timestamp.

Reads hide expired rows. A bounded sweep at commits deletes them, with tombstones in the changelog.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

#: Rows that a commit's sweep reads, and more for each row that the commit writes.
_SWEPT: Final = 1_000
_SWEPT_PER_ROW: Final = 4

_NEVER: Final = 1 << 64


class TtlBuffer(TimedBuffer):
    def __init__(
        self, spec: StoreSpec, database: Database, *, topic: str, read_cache_bytes: int
    ) -> None:
        super().__init__(spec, database, topic=topic, read_cache_bytes=read_cache_bytes)
        assert spec.ttl_ms is not None, "made for stores with a ttl"
        self._ttl_ms = spec.ttl_ms
        self._due_ms = 0
        #: Next key of the sweep, and the oldest timestamp found since the sweep began.
        self._cursor: bytes | None = None
        self._oldest_ms = _NEVER

    def _has_ended(self, timestamp: int) -> bool:
        return timestamp + self._ttl_ms <= self.observed_stream_time_ms

    def get(self, key: bytes) -> Any:
        value = self.peek(key)
        return None if value is None or self._has_ended(self.timestamps[key]) else value

    def get_many(self, keys: Sequence[bytes]) -> list[Any]:
        self.fetch(keys)
        return list(map(self.get, keys))

    def are_decoded(self, keys: Collection[bytes]) -> bool:  # noqa: ARG002 - the signature of any buffer
        """Return False, so callers don't use `values` directly: they may have expired."""
        return False

    def exists(self, key: bytes) -> bool:
        return super().exists(key) and not self._has_ended(self.timestamps[key])

    def timestamp(self, key: bytes) -> int:
        timestamp = super().timestamp(key)
        return -1 if self._has_ended(timestamp) else timestamp

    def iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any, int]]:
        alive_from = self.observed_stream_time_ms - self._ttl_ms
        return (
            row for row in super().iterate(lower, upper, reverse=reverse) if row[2] > alive_from
        )

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
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
        """Return False to demand single puts: each row's timestamp advances the time."""
        return False

    def has_changes(self) -> bool:
        if self._due_ms <= self.observed_stream_time_ms:
            self._sweep(_SWEPT + _SWEPT_PER_ROW * len(self.dirty))
        return super().has_changes()

    def _sweep(self, limit: int) -> None:
        rows = list(islice(self._database.iterate(self._family, self._cursor, None), limit))
        for key, data in rows:
            timestamp = unwrap_value(data)[1]
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
        # The next sweep finds the minimum again, as it reads all rows. If the timestamps of deleted
        # rows stayed in the minimum, every commit would sweep.
        self._oldest_ms = _NEVER

    def _observe_rows(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        self.observe(
            max((unwrap_value(data)[1] for _, data in rows if data is not None), default=-1)
        )
        self._due_ms = 0

    def discard(self) -> None:
        super().discard()
        self._cursor = None
        self._due_ms = 0
