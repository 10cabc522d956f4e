"""Readers of changelogs and global topics: the port `tidewheel.tasks.kafka.ports.ChangelogReader`."""

import time
from bisect import bisect_left
from collections.abc import Callable, Generator
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.consumer import AssignedConsumer
from tidewheel.tasks.kafka.ports import ChangelogReader
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: `read_range` raises after this many seconds without progress.
STALL_S: Final = 60.0
_POLL_RECORDS: Final = 20_000
_POLL_S: Final = 0.5


class KafkaChangelogReader(AssignedConsumer):
    """Reads changelog records from assigned offsets: read_committed, big fetches, no headers."""

    noun = "changelog"
    next_step = "the local state behind it is too old or from another life of the topic; restore it from the beginning"
    with_headers = False


class KafkaGlobalReader(AssignedConsumer):
    noun = "global topic"
    next_step = "the global stores are read again from the beginning"


def read_range(
    settings: ClientSettings,
    partition: TopicPartition,
    from_offset: int,
    to_offset: int,
    *,
    stall_s: float = STALL_S,
    make_reader: Callable[[], ChangelogReader] | None = None,
) -> Generator[SourceRecords]:
    """Yield the committed records of a partition with from_offset <= offset < to_offset.

    Raises:
        OffsetOutOfRangeError: `from_offset` is deleted.
        StreamsError: No progress for `stall_s` seconds.
    """
    if from_offset >= to_offset:
        return
    reader = KafkaChangelogReader(settings.changelog()) if make_reader is None else make_reader()
    try:
        reader.assign({partition: from_offset})
        position, moved_s = from_offset, time.monotonic()
        while position < to_offset:
            for run in reader.poll(_POLL_RECORDS, _POLL_S):
                stop = bisect_left(run.offsets, to_offset)
                if stop:
                    yield run if stop == len(run) else run.slice(0, stop)
            reached = reader.positions()[partition]
            if reached > position:
                position, moved_s = reached, time.monotonic()
            elif time.monotonic() - moved_s > stall_s:
                raise StreamsError(
                    f"{partition}: nothing came for {stall_s:g} s at offset {position}, though the log ends at "
                    f"{to_offset}; check that the partition has a leader, and run it again"
                )
    finally:
        reader.close()
