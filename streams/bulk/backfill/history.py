"""History of a source topic: rows of a frame that are older than the records in Kafka's log.

A frame with the columns `partition` and `offset` is a dump of the topic. Its rows are used up to
the first offset that is read from Kafka, so no record is missing or counted twice. Rows of other
frames go to the partition of their key, ordered by time, and `until_ms` divides the records: older
ones come from the frame, later ones from Kafka.

The rows get consecutive offsets below Kafka's first one; they may be negative.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.frame_source import FrameSource
from tidewheel.streams.bulk.batch.executors import Counted, Work, place_records, write_records
from tidewheel.streams.bulk.batch.rows import (
    BEFORE_ALL,
    OFFSET,
    PARTITION,
    PlacedRecord,
    Record,
    RecordEncoder,
    columns_of,
    records_of,
)
from tidewheel.streams.bulk.batch.run import BatchRun
from tidewheel.streams.bulk.batch.source_segments import (
    OffsetRange,
    Segment,
    StoredRows,
    segments_of,
)
from tidewheel.streams.bulk.batch.stage_files import StageFile
from tidewheel.streams.bulk.bootstrap.rows import shown
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.processing.api.topology_spec import SourceSpec

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import DataFrame

#: Names by which users accept differences.
GAP: Final = "gap"
OVERLAP: Final = "overlap"
TIES: Final = "ties"

#: Most partitions named in a message.
_NAMED: Final = 8

#: A record and its place; or, before all rows of a partition, the number of its rows left out.
HistoryRow = tuple[tuple[int, tuple[Any, ...]], tuple[Any, ...] | str | int]
#: Returns the first offset of each partition from a time (ms) on, as `OffsetsAdmin` does.
OffsetsAt = Callable[[Sequence[TopicPartition], int], Mapping[TopicPartition, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Records of one topic.

    Attributes:
        rows: Stored rows of the partitions that have some.
        ranges: Records of each partition that are read from Kafka after them.
        left_out: Number of rows of each partition that Kafka's records replace.
        gaps: Accepted gaps, one text for each partition.
    """

    rows: Mapping[TopicPartition, StoredRows]
    ranges: Mapping[TopicPartition, OffsetRange]
    left_out: Mapping[TopicPartition, int]
    gaps: tuple[str, ...]

    @property
    def segments(self) -> dict[TopicPartition, tuple[Segment, ...]]:
        return segments_of(self.rows, self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenHistory:
    """A partition's rows in a file.

    Attributes:
        left_out: Number of rows that Kafka's records replace.
        last_offset: The frame's last offset; None without rows or offsets.
        missing: Number of offsets that are missing between the rows, and the first of them.
    """

    file: StageFile
    records: int
    left_out: int
    last_offset: int | None
    missing: int = 0
    first_missing: int | None = None


def objections_to_begins(plan: ApplicationPlan, topics: Iterable[str]) -> Iterator[str]:
    """Yield the reasons why topics can't begin after their first record."""
    restored = _restored_stores(plan)
    for topic in sorted(topics):
        if topic in restored:
            yield (
                f"from of {topic}: workers restore store {restored[topic]} from this topic, so they would also have its earlier "
                "records; leave it out, or give the table a changelog of its own (topology_optimization without "
                "reuse_ktable_source_topics)"
            )


def _restored_stores(plan: ApplicationPlan) -> dict[str, str]:
    """Return the tables that workers restore from their source topic, by topic."""
    return {
        store.source_topic: store.name
        for planned in plan.subtopologies.values()
        for store in planned.spec.stores
        if store.source_topic is not None
    }


def objections_to_history(plan: ApplicationPlan, topics: Iterable[str]) -> Iterator[str]:
    """Yield the reasons why topics can't have a history."""
    subtopologies = plan.subtopologies.values()
    sources = {
        topic
        for planned in subtopologies
        for source in planned.spec.sources
        if not source.internal
        for topic in planned.source_topics[source.name]
    }
    restored = _restored_stores(plan)
    of_all = {each.topic: each.store.name for each in plan.global_stores}
    for topic in sorted(topics):
        if topic in of_all:
            yield (
                f"history of {topic}: every worker fills global store {of_all[topic]} from this topic alone, so it would not have the "
                "rows of the frame; write them to the topic"
            )
        elif topic in restored:
            yield (
                f"history of {topic}: workers restore store {restored[topic]} from this topic, so they would lose the rows "
                "that only the frame has; write them to the topic, or give the table a changelog of its own "
                "(topology_optimization without reuse_ktable_source_topics)"
            )
        elif topic not in sources:
            yield (
                f"history of {topic}: the topology does not read this topic; it reads {', '.join(sorted(sources)) or 'none'}"
            )


def objections_to_frame(
    topic: str,
    dtypes: Sequence[tuple[str, str]],
    ranges: Mapping[TopicPartition, OffsetRange],
    *,
    until_ms: int | None,
    order_by: Sequence[str],
    accept: frozenset[str],
) -> Iterator[str]:
    """Yield the reasons against a frame, given by its columns' names and Spark types."""
    try:
        columns = columns_of(topic, dtypes)
    except ConfigError as error:
        yield str(error)
        return
    what = f"history of {topic}"
    names = [name for name, _ in dtypes]
    missing = [name for name in order_by if name not in names]
    if missing:
        yield (
            f"{what}: rows are ordered by {', '.join(missing)}, which the frame has not; it has {', '.join(names)}"
        )
    if OFFSET in columns.optional:
        if PARTITION not in columns.optional:
            yield f"{what}: the frame has a column offset but no partition; give both, or drop offset"
        if until_ms is not None or order_by:
            yield (
                f"{what}: the frame has a column offset, by which its rows are ordered and divided from Kafka's records; "
                "drop it, or leave out the time until which rows count and the columns to order by"
            )
    elif (
        until_ms is None and OVERLAP not in accept and any(each.records for each in ranges.values())
    ):
        yield (
            f"{what}: rows without columns partition and offset may be records that Kafka still has; give these columns, or "
            f"the time until which rows count (--history-until {topic}=MS, HistoryFrame(until_ms=...)), or accept {OVERLAP}: "
            "all rows and all records of Kafka count"
        )


def split_by_time(
    ranges: Mapping[TopicPartition, OffsetRange],
    splits: Mapping[TopicPartition, int],
    until_ms: int,
) -> tuple[dict[TopicPartition, OffsetRange], list[str]]:
    """Return the ranges without records before a time, and a text for each possible gap.

    `splits`: each partition's first offset from this time on. If Kafka has deleted records of a
    partition and all others are later, it may have deleted later ones, too.
    """
    divided = {
        at: OffsetRange(
            first=min(max(splits[at], offsets.first), offsets.end),
            end=offsets.end,
            from_ms=until_ms,
        )
        for at, offsets in ranges.items()
    }
    gaps = [
        f"{at}: Kafka is read from offset {offsets.first} on, and no record there is older than {until_ms} ms"
        for at, offsets in ranges.items()
        if 0 < offsets.first >= splits[at]
    ]
    return divided, gaps


def offset_gaps(
    ranges: Mapping[TopicPartition, OffsetRange], results: Iterable[WrittenHistory]
) -> list[str]:
    """Return a text for each place of a dump where records may be missing: in it, or before a range.

    Ranges and results are in the order of partitions.

    >>> file = StageFile(name="f", index_at=0, size=0)
    >>> written = WrittenHistory(file=file, records=7, left_out=0, last_offset=41)
    >>> offset_gaps({TopicPartition("clicks", 0): OffsetRange(first=50, end=90)}, [written])
    ['clicks-0: the last row has offset 41, Kafka is read from 50 on']
    """
    gaps: list[str] = []
    for (at, offsets), written in zip(ranges.items(), results, strict=True):
        if written.missing:
            gaps.append(
                f"{at}: {written.missing} offsets are missing between the rows, the first is {written.first_missing}"
            )
        last = written.last_offset
        if (-1 if last is None else last) + 1 < offsets.first:
            end = "there is no row" if last is None else f"the last row has offset {last}"
            gaps.append(f"{at}: {end}, Kafka is read from {offsets.first} on")
        elif written.left_out and not offsets.records:
            gaps.append(
                f"{at}: {written.left_out} rows are from offset {offsets.first} on, where no record of Kafka is read"
            )
    return gaps


def read_history(
    run: BatchRun,
    topic: str,
    frame: "DataFrame | FrameSource",
    source: SourceSpec,
    partitions: int,
    ranges: Mapping[TopicPartition, OffsetRange],
    *,
    offsets_at: OffsetsAt,
    until_ms: int | None = None,
    order_by: Sequence[str] = (),
    accept: frozenset[str] = frozenset(),
) -> History:
    """Encode a frame's rows that are older than Kafka's, and write them by partition and in order.

    Args:
        ranges: Records of each of the topic's partitions that Kafka has; others are ignored.
        until_ms: Rows from this time on are left out, and so are Kafka's records before it. For
            frames without offsets.
        order_by: Columns that order rows of equal times. For frames without offsets.
        accept: Any of `gap`: records may be missing between the rows and Kafka's. `overlap`: rows
            may be records that Kafka has. `ties`: rows of one key and time are ordered by value.

    Raises:
        ConfigError: The frame has wrong columns, or nothing divides it from Kafka's records.
        StreamsError: A row is wrong, or a difference is not accepted.
    """
    ranges = {at: ranges[at] for at in (TopicPartition(topic, each) for each in range(partitions))}
    opened = run.frame_of(frame, source)
    objections = objections_to_frame(
        topic, opened.dtypes, ranges, until_ms=until_ms, order_by=order_by, accept=accept
    )
    if text := "; ".join(objections):
        raise ConfigError(text)
    encoder = RecordEncoder(
        topic=topic,
        partitions=partitions,
        columns=columns_of(topic, opened.dtypes),
        key_serde=source.key_serde,
        value_serde=source.value_serde,
        order_by=tuple(order_by),
    )
    has_offsets = OFFSET in encoder.columns.optional
    gaps: list[str] = []
    limits: list[int] | None = None
    if has_offsets:
        limits = [offsets.first for offsets in ranges.values()]
    elif until_ms is not None:
        limits = [until_ms] * partitions
        ranges, gaps = split_by_time(ranges, offsets_at(list(ranges), until_ms), until_ms)
        _check_gaps(topic, gaps, accept, _TIME_STEP)
    results = run.write_rows(
        f"reading history of {topic}",
        opened,
        encoder,
        partial(place_history, encoder, limits),
        partial(
            write_history,
            run.work,
            topic,
            has_offsets=has_offsets,
            accepts_ties=TIES in accept,
        ),
    )
    if has_offsets:
        gaps = offset_gaps(ranges, results)
        _check_gaps(topic, gaps, accept, _OFFSET_STEP)
    return _history(ranges, results, gaps)


def _history(
    ranges: Mapping[TopicPartition, OffsetRange],
    results: Iterable[WrittenHistory],
    gaps: Iterable[str],
) -> History:
    written = dict(zip(ranges, results, strict=True))
    return History(
        rows={
            at: StoredRows(
                file=each.file,
                records=each.records,
                first_offset=ranges[at].first - each.records,
            )
            for at, each in written.items()
            if each.records
        },
        ranges=ranges,
        left_out={at: each.left_out for at, each in written.items() if each.left_out},
        gaps=tuple(gaps),
    )


_OFFSET_STEP: Final = (
    f"give the missing rows, or accept {GAP} if there are none: an offset may be that of a transaction's marker, or of a "
    "record that was aborted or compacted away"
)
_TIME_STEP: Final = (
    f"give a later time, such that Kafka has some records before it, or accept {GAP} if the frame has all records up to then and "
    "Kafka all later ones"
)


def _check_gaps(topic: str, gaps: Sequence[str], accept: frozenset[str], next_step: str) -> None:
    if gaps and GAP not in accept:
        more = f" and {len(gaps) - _NAMED} more" if len(gaps) > _NAMED else ""
        raise StreamsError(
            f"history of {topic}: records may be missing: {'; '.join(gaps[:_NAMED])}{more}; "
            f"{next_step}"
        )


def place_history(
    encoder: RecordEncoder,
    limits: Sequence[int] | None,
    rows: Iterable[Mapping[str, Any]],
    count: Counted,
) -> Iterator[HistoryRow]:
    """Yield a frame's rows as records with their places, without those from `limits` on.

    `limits`: by partition, an offset or a time; None to leave out nothing.
    """
    left_out: Counter[int] = Counter()
    for placed in place_records(encoder, rows, count):
        partition, order = placed[0]
        if limits is not None and order[0] >= limits[partition]:
            left_out[partition] += 1
        else:
            yield placed
    for partition, number in left_out.items():
        yield (partition, BEFORE_ALL), number


def write_history(
    work: Work,
    topic: str,
    partition: int,
    rows: Iterator[HistoryRow],
    count: Counted,
    *,
    has_offsets: bool,
    accepts_ties: bool,
) -> WrittenHistory:
    """Write the records of a topic's partition."""
    reader = _HistoryReader(topic)
    records = reader.records(rows, has_offsets=has_offsets, accepts_ties=accepts_ties)
    result = write_records(work, topic, partition, records, count)
    return WrittenHistory(
        file=result.file,
        records=result.records[topic],
        left_out=reader.left_out,
        last_offset=reader.last[0] if has_offsets and reader.last else None,
        missing=reader.missing,
        first_missing=reader.first_missing,
    )


@dataclass(slots=True)
class _HistoryReader:
    """Reads a partition's rows; `last` is the order of the last one."""

    topic: str
    left_out: int = 0
    missing: int = 0
    first_missing: int | None = None
    last: tuple[Any, ...] = field(default=())

    def records(
        self, rows: Iterator[HistoryRow], *, has_offsets: bool, accepts_ties: bool
    ) -> Iterator[Record]:
        placed = self._placed(
            rows, has_offsets=has_offsets, checks_ties=not (has_offsets or accepts_ties)
        )
        return records_of(self.topic, placed, has_offsets=has_offsets)

    def _placed(
        self, rows: Iterator[HistoryRow], *, has_offsets: bool, checks_ties: bool
    ) -> Iterator[PlacedRecord]:
        for place, payload in rows:
            if isinstance(payload, int):
                self.left_out += payload
                continue
            order = place[1]
            if checks_ties and not isinstance(payload, str):
                self._check_tie(order, payload[1])
            if has_offsets and self.last and order != BEFORE_ALL:
                self._count_missing(self.last[0] + 1, order[0])
            self.last = order
            yield place, payload

    def _count_missing(self, expected: int, offset: int) -> None:
        if offset > expected:
            self.missing += offset - expected
            self.first_missing = expected if self.first_missing is None else self.first_missing

    def _check_tie(self, order: tuple[Any, ...], key: bytes | None) -> None:
        """Raise `StreamsError` for unequal rows of a key and time that no column orders."""
        # The last two are value and headers.
        if key is not None and order != self.last and order[:-2] == self.last[:-2]:
            raise StreamsError(
                f"history of {self.topic}: several rows have the key {shown(key)} and the time {order[0]} ms; name columns that "
                f"order them (order_by=), or accept {TIES}: their order is then that of their values"
            )
