"""Segments of a source partition: stored rows of a frame, and offset ranges of Kafka's log."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.storage import Storage
from tidewheel.streams.bulk.batch.blob_streams import blobs_of
from tidewheel.streams.bulk.batch.stage_files import StageFile
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.changelog import read_range
from tidewheel.streams.kafka.consumers.consumer import AssignedConsumer
from tidewheel.tasks.processing.engine.record_batch import SourceRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Records of a frame, in a stage file; they get consecutive offsets from `first_offset`."""

    file: StageFile
    records: int
    first_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Records of Kafka's log from offset `first` up to `end` (exclusive).

    Attributes:
        from_ms: Records with earlier timestamps are left out.
    """

    first: int
    end: int
    from_ms: int | None = None

    @property
    def records(self) -> int:
        """Return the records at most: offsets of markers and of records left out count."""
        return self.end - self.first


Segment = StoredRows | OffsetRange


def segments_of(
    rows: Mapping[TopicPartition, StoredRows], ranges: Mapping[TopicPartition, OffsetRange]
) -> dict[TopicPartition, tuple[Segment, ...]]:
    """Return the segments of partitions whose stored rows precede their offset ranges."""
    return {at: (rows[at], offsets) if at in rows else (offsets,) for at, offsets in ranges.items()}


class KafkaInputReader(AssignedConsumer):
    """Reads source topics: read_committed, big fetches, with headers."""

    noun = "source topic"
    next_step = "its retention deleted records before they were read; start over with restart"


def source_records(
    storage: Storage,
    settings: ClientSettings | None,
    at: TopicPartition,
    segments: Sequence[Segment],
) -> Iterator[SourceRecords]:
    """Yield the records of a partition, segment by segment."""
    for segment in segments:
        if isinstance(segment, StoredRows):
            yield from _stored(storage, at, segment)
            continue
        assert settings is not None, "only runs with a cluster have offset ranges"
        make_reader = partial(KafkaInputReader, settings.changelog())
        with closing(
            read_range(settings, at, segment.first, segment.end, make_reader=make_reader)
        ) as runs:
            yield from runs if segment.from_ms is None else since(runs, segment.from_ms)


def since(runs: Iterable[SourceRecords], from_ms: int) -> Iterator[SourceRecords]:
    """Yield the records with these or later timestamps."""
    for run in runs:
        rows = [row for row, time_ms in enumerate(run.timestamps) if time_ms >= from_ms]
        if rows:
            yield run if len(rows) == len(run) else run.take(rows)


def _stored(storage: Storage, at: TopicPartition, segment: StoredRows) -> Iterator[SourceRecords]:
    first = segment.first_offset
    with closing(blobs_of(storage, at, segment.file)) as blobs:
        for blob in blobs:
            yield SourceRecords(
                at.topic,
                at.partition,
                range(first, first + len(blob)),
                blob.keys,
                blob.values,
                blob.timestamps,
                blob.headers,
            )
            first += len(blob)
