"""A commit buffer of a store whose rows end with time: it knows the largest time the store has seen.

That time is kept beside the positions at each commit, so that it stands on disk together with the rows, whoever opens
them: a restarted task, or a query.
"""

import struct
from collections.abc import Sequence
from typing import Final

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer, Drained, Restored
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

#: The largest time seen, and the last sequence number of duplicates.
_NOTE: Final = struct.Struct(">qI")


def note_name(store: str) -> str:
    """Return the name under which a store's time is kept beside the positions.

    >>> note_name("clicks")
    'stream-time:clicks'
    """
    return f"stream-time:{store}"


def decode_note(data: bytes | None) -> tuple[int, int]:
    """Return the largest time and the last sequence number of a note, -1 and 0 for none.

    >>> decode_note(encode_note(1_000, 3))
    (1000, 3)
    """
    if data is None or len(data) != _NOTE.size:
        return -1, 0
    observed, seq = _NOTE.unpack(data)
    return observed, seq


def encode_note(observed_ms: int, seq: int) -> bytes:
    """Return a note of the largest time (ms since the epoch) and the last sequence number."""
    return _NOTE.pack(observed_ms, seq)


def read_note(database: Database, store: str) -> tuple[int, int]:
    """Return the largest time a store has seen and its last sequence number, as committed; -1 and 0 before the first."""
    return decode_note(database.position(note_name(store)))


class TimedBuffer(CommitBuffer):
    """Buffered access to a family whose rows end with time.

    Attributes:
        in_range: This is one key range of the store. It begins without a time, because that on disk is the fastest
            range's; it notes that, or its own time where that is later. What has expired it leaves to the task
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
        #: Largest time the store has seen (ms since the epoch), -1 before the first.
        self.observed_stream_time_ms = -1
        #: Last sequence number given to a duplicate.
        self.seq = 0
        #: What the disk says or is told by the commit at hand.
        self._noted = (-1, 0)
        self.load_note()

    def load_note(self) -> None:
        """Go on with the time on disk, or in a key range without any."""
        self._noted = read_note(self._database, self.spec.name)
        observed, self.seq = self._noted
        self.observed_stream_time_ms = -1 if self.in_range else observed

    @property
    def time_ms(self) -> int:
        """Return the store's time: the largest it has seen, in a key range also that on disk."""
        return self._to_note()[0]

    def divide(self) -> None:
        """Be as one key range for a while: what comes now are records that some ranges have done before and some not."""
        self.in_range = True
        self.load_note()

    def unite(self) -> None:
        """Be the whole store again: all its ranges are level."""
        self.in_range = False
        self.observe(self._noted[0])

    def observe(self, stream_time_ms: int) -> None:
        """Let the store know how far time has come; going back does nothing."""
        self.observed_stream_time_ms = max(self.observed_stream_time_ms, stream_time_ms)

    def _note(self) -> dict[str, bytes]:
        """Return what is to be kept beside the positions."""
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
        slowest_ms: int | None = None,  # noqa: ARG002 - for stores that delete what has expired
    ) -> Restored:
        """Note that these rows were restored from the changelog; return what is written along with them."""
        self._observe_rows(rows)
        notes = self._note()
        self._noted = (self.observed_stream_time_ms, self.seq)
        return Restored(notes=notes)

    def applied(self) -> None:
        """The database shows the drained changes: all entries are clean now."""
        self._noted = (
            self._to_note() if self.in_range else read_note(self._database, self.spec.name)
        )
        super().applied()

    def discard(self) -> None:
        """Forget everything, also uncommitted changes: the next read sees the database."""
        super().discard()
        self.load_note()
