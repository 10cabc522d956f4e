"""Commit buffer of a store whose rows expire; tracks the store's time.

The store's time is the largest one it has seen. Each commit stores it next to the positions.
"""

import struct
from collections.abc import Sequence
from typing import Final

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer, Drained, RestoreExtras
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

_NOTE: Final = struct.Struct(">qI")


def note_name(store: str) -> str:
    """Return the name under which a store's time is stored next to the positions.

    >>> note_name("clicks")
    'stream-time:clicks'
    """
    return f"stream-time:{store}"


def decode_note(data: bytes | None) -> tuple[int, int]:
    """Return the stored time and last sequence number; -1 and 0 without a note.

    >>> decode_note(encode_note(1_000, 3))
    (1000, 3)
    """
    if data is None or len(data) != _NOTE.size:
        return -1, 0
    observed, seq = _NOTE.unpack(data)
    return observed, seq


def encode_note(observed_ms: int, seq: int) -> bytes:
    return _NOTE.pack(observed_ms, seq)


def read_note(database: Database, store: str) -> tuple[int, int]:
    """Return the committed time and last sequence number; -1 and 0 before the first."""
    return decode_note(database.position(note_name(store)))


class TimedBuffer(CommitBuffer):
    """Buffered access to a column family whose rows expire.

    `in_range` means one key range of the store. It starts without a time, because the time on disk
    is that of the fastest range. The task deletes expired rows
    (`tidewheel.state_stores.buffers.expiry`).
    """

    def __init__(
        self,
        spec: StoreSpec,
        database: Database,
        *,
        topic: str,
        keep_bytes: int,
        in_range: bool = False,
    ) -> None:
        super().__init__(spec, database, topic=topic, keep_bytes=keep_bytes)
        self.in_range = in_range
        self.observed_stream_time_ms = -1
        self.seq = 0
        #: Time and sequence number on disk or in the commit in flight.
        self._noted = (-1, 0)
        self.load_note()

    def load_note(self) -> None:
        self._noted = read_note(self._database, self.spec.name)
        observed, self.seq = self._noted
        self.observed_stream_time_ms = -1 if self.in_range else observed

    @property
    def time_ms(self) -> int:
        return self._to_note()[0]

    def divide(self) -> None:
        """Behave as one key range: the next records were processed by some ranges already."""
        self.in_range = True
        self.load_note()

    def unite(self) -> None:
        """Be the whole store again: all ranges have the same position."""
        self.in_range = False
        self.observe(self._noted[0])

    def observe(self, stream_time_ms: int) -> None:
        """Advance the store's time; an earlier time has no effect."""
        self.observed_stream_time_ms = max(self.observed_stream_time_ms, stream_time_ms)

    def _note(self) -> dict[str, bytes]:
        now = self._to_note()
        return {note_name(self.spec.name): encode_note(*now)} if now != self._noted else {}

    def _to_note(self) -> tuple[int, int]:
        observed, seq = self.observed_stream_time_ms, self.seq
        return (max(observed, self._noted[0]), seq) if self.in_range else (observed, seq)

    def _drained(
        self, keys: list[bytes], values: list[bytes | None], timestamps: list[int]
    ) -> Drained:
        return Drained(keys, values, timestamps, notes=self._note())

    def _observe_rows(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        raise NotImplementedError

    def restored(
        self,
        rows: Sequence[tuple[bytes, bytes | None]],
        *,
        slowest_ms: int | None = None,  # noqa: ARG002 - for stores that delete expired rows
    ) -> RestoreExtras:
        self._observe_rows(rows)
        notes = self._note()
        self._noted = (self.observed_stream_time_ms, self.seq)
        return RestoreExtras(notes=notes)

    def applied(self) -> None:
        self._noted = (
            self._to_note() if self.in_range else read_note(self._database, self.spec.name)
        )
        super().applied()

    def discard(self) -> None:
        super().discard()
        self.load_note()
