"""Commit buffer of a store whose rows expire.

The store's time is the largest that `observe` got.
"""

import struct
from collections.abc import Sequence
from typing import Final

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer, Drained, RestoreExtras
from tidewheel.state_stores.layout.position import store_time_name
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

_STORE_TIME: Final = struct.Struct(">qI")


def decode_store_time(data: bytes | None) -> tuple[int, int]:
    """Return the stored time and last sequence number; -1 and 0 for None.

    >>> decode_store_time(encode_store_time(1_000, 3))
    (1000, 3)
    """
    if data is None or len(data) != _STORE_TIME.size:
        return -1, 0
    observed, seq = _STORE_TIME.unpack(data)
    return observed, seq


def encode_store_time(observed_ms: int, seq: int) -> bytes:
    return _STORE_TIME.pack(observed_ms, seq)


def read_store_time(database: Database, store: str) -> tuple[int, int]:
    return decode_store_time(database.position(store_time_name(store)))


class TimedBuffer(CommitBuffer):
    """Buffer of a whole store, or of one key range (`in_range`).

    A range starts at stream time -1: by the stored time, the fastest range's, its rows would expire
    too early. The task deletes expired rows.
    """

    def __init__(
        self,
        spec: StoreSpec,
        database: Database,
        *,
        topic: str,
        read_cache_bytes: int,
        in_range: bool = False,
    ) -> None:
        super().__init__(spec, database, topic=topic, read_cache_bytes=read_cache_bytes)
        self.in_range = in_range
        self.observed_stream_time_ms = -1
        self.seq = 0
        self._stored_time = (-1, 0)
        self.load_time()

    def load_time(self) -> None:
        self._stored_time = read_store_time(self._database, self.spec.name)
        observed, self.seq = self._stored_time
        self.observed_stream_time_ms = -1 if self.in_range else observed

    @property
    def time_ms(self) -> int:
        return self._latest_time()[0]

    def divide(self) -> None:
        """Restart the time as one key range: the stored time includes records not yet processed."""
        self.in_range = True
        self.load_time()

    def unite(self) -> None:
        """Be the whole store again: all ranges have the same position."""
        self.in_range = False
        self.observe(self._stored_time[0])

    def observe(self, stream_time_ms: int) -> None:
        self.observed_stream_time_ms = max(self.observed_stream_time_ms, stream_time_ms)

    def _time_to_store(self) -> dict[str, bytes]:
        now = self._latest_time()
        return (
            {store_time_name(self.spec.name): encode_store_time(*now)}
            if now != self._stored_time
            else {}
        )

    def _latest_time(self) -> tuple[int, int]:
        observed, seq = self.observed_stream_time_ms, self.seq
        return (max(observed, self._stored_time[0]), seq) if self.in_range else (observed, seq)

    def _drained(
        self, keys: list[bytes], values: list[bytes | None], timestamps: list[int]
    ) -> Drained:
        return Drained(keys, values, timestamps, metadata=self._time_to_store())

    def _observe_rows(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        raise NotImplementedError

    def restored(
        self,
        rows: Sequence[tuple[bytes, bytes | None]],
        *,
        slowest_ms: int | None = None,  # noqa: ARG002 - for stores that delete expired rows
    ) -> RestoreExtras:
        self._observe_rows(rows)
        metadata = self._time_to_store()
        self._stored_time = (self.observed_stream_time_ms, self.seq)
        return RestoreExtras(metadata=metadata)

    def applied(self) -> None:
        self._stored_time = (
            self._latest_time()
            if self.in_range
            else read_store_time(self._database, self.spec.name)
        )
        super().applied()

    def discard(self) -> None:
        super().discard()
        self.load_time()
