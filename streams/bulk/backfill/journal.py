"""Journal of a backfill: its question, the offsets that it reads, and the steps that are done.

It is next to the stage files. The next run continues from it after a kill.
"""

import zlib
from typing import Final

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.storage import Storage
from tidewheel.streams.bulk.backfill.history import History
from tidewheel.streams.bulk.batch.executors import StageResult
from tidewheel.streams.bulk.batch.source_segments import (
    OffsetRange,
    Segment,
    StoredRows,
    segments_of,
)
from tidewheel.streams.errors import StreamsError

_NAME: Final = "journal"
_VERSION: Final = 2
_BYTES_MAX: Final = 1 << 30
_CHECKSUM_BYTES: Final = 4


class _Versioned(msgspec.Struct, frozen=True):
    """The part of a journal that all releases have."""

    version: int


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """State of one backfill.

    Attributes:
        run: Random id of the run that writes it.
        question: `Question.digests`; a run with others does not continue this one.
        ranges: Offsets of each partition of the source topics and global topics.
        history: Stored rows before these offsets, of topics in `read`.
        read: Topics whose history is read.
        passes: Results of the passes that are done.
        published_ms: Time (since the epoch) when the first run began to publish; None before.
    """

    version: int = _VERSION
    run: str = ""
    question: dict[str, str]
    ranges: dict[TopicPartition, OffsetRange]
    history: dict[TopicPartition, StoredRows] = {}
    read: list[str] = []
    passes: list[list[StageResult]] = []
    published_ms: int | None = None

    def with_history(self, topic: str, history: History) -> "Journal":
        return msgspec.structs.replace(
            self,
            ranges={**self.ranges, **history.ranges},
            history={**self.history, **history.rows},
            read=[*self.read, topic],
        )

    @property
    def segments(self) -> dict[TopicPartition, tuple[Segment, ...]]:
        return segments_of(self.history, self.ranges)

    def with_pass(self, results: list[StageResult]) -> "Journal":
        return msgspec.structs.replace(self, passes=[*self.passes, results])

    def published_since(self, now_ms: int) -> "Journal":
        """Return the journal of a run that publishes; an earlier time stays."""
        if self.published_ms is not None:
            return self
        return msgspec.structs.replace(self, published_ms=now_ms)


def check_owner(storage: Storage, run: str) -> None:
    """Raise `StreamsError` if another run has claimed the journal since, or deleted it."""
    journal = read_journal(storage)
    if journal is None:
        raise StreamsError(
            f"{storage.shown}: the files of this run are gone: another run of this backfill has finished, or they were "
            "deleted; run this again: it is refused if the application has its offsets"
        )
    if journal.run != run:
        raise StreamsError(
            f"{storage.shown}: another run of this backfill has begun since, and has taken over: check that one; this one ends"
        )


def write_journal(storage: Storage, journal: Journal) -> None:
    """Write the journal of the run that owns it; raise `StreamsError` if another run does."""
    check_owner(storage, journal.run)
    claim_journal(storage, journal)


def claim_journal(storage: Storage, journal: Journal) -> None:
    """Write the journal: from now on the run that it names owns it."""
    body = msgspec.msgpack.encode(journal)
    try:
        storage.write(_NAME, zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") + body)
    except OSError as error:
        raise StreamsError(
            f"{storage.shown} can't be written: {error}; check that the driver and all executors may write there (work=)"
        ) from error


def read_journal(storage: Storage) -> Journal | None:
    """Return the journal of an earlier run; None without one.

    Raises:
        StreamsError: It is damaged, or of another version.
    """
    try:
        data = storage.read(_NAME, _BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StreamsError(
            f"{storage.shown} can't be read: {error}; check address and permissions (work=)"
        ) from error
    body = data[_CHECKSUM_BYTES:]
    problem = "its checksum is wrong"
    if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") == data[:_CHECKSUM_BYTES]:
        try:
            version = msgspec.msgpack.decode(body, type=_Versioned).version
            if version == _VERSION:
                return msgspec.msgpack.decode(body, type=Journal)
            problem = f"it has version {version}, this release reads {_VERSION}"
        except msgspec.MsgspecError as error:
            problem = str(error)
    raise StreamsError(
        f"{storage.shown}: the journal of an earlier backfill can't be used: {problem}; start over with restart "
        "(--restart)"
    )


def delete_all(storage: Storage) -> None:
    """Delete the journal first: without it no file counts."""
    storage.delete(_NAME)
    for name in storage.names(""):
        storage.delete(name)
