"""Offset ranges that a backfill reads, as the user names them. Pure but for the admin's answers."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.bulk.batch.source_segments import OffsetRange
from tidewheel.streams.bulk.bootstrap.plan import InputOffsets, parse_input_offsets
from tidewheel.streams.errors import ConfigError

#: Where topics begin by default.
EARLIEST: Final = "earliest"
_EARLIEST: Final = parse_input_offsets(EARLIEST)


class OffsetsAdmin(Protocol):
    def beginning_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]: ...

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]: ...

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]: ...


def parse_begins(
    begins: Mapping[str, str] | None, topics: Sequence[str]
) -> dict[str, InputOffsets]:
    """Return where each topic begins; raise `ConfigError` for other topics and forms.

    >>> parse_begins({"orders": "timestamp:5"}, ["orders"])["orders"].timestamp_ms
    5
    """
    parsed: dict[str, InputOffsets] = {}
    for topic, text in (begins or {}).items():
        if topic not in topics:
            raise ConfigError(
                f"backfill: {topic} is not a source topic of the topology; it reads {', '.join(topics) or 'none'}"
            )
        parsed[topic] = parse_input_offsets(text)
    return parsed


def ranges_of(
    admin: OffsetsAdmin,
    partitions: Sequence[TopicPartition],
    *,
    begins: Mapping[str, InputOffsets],
    until: InputOffsets | Mapping[TopicPartition, int],
) -> dict[TopicPartition, OffsetRange]:
    """Return the offsets to read from each partition.

    `until`: where all end, or the end of each partition. The end of a log is its last stable
    offset: records of open transactions are not read.

    Raises:
        ConfigError: An offset is outside the log.
    """
    starts = admin.beginning_offsets(partitions)
    stable = admin.stable_offsets(partitions)
    ends = until if isinstance(until, Mapping) else _at(admin, until, partitions, starts, stable)
    firsts = {
        at: _at(admin, begins.get(at.topic, _EARLIEST), [at], starts, stable)[at]
        for at in partitions
    }
    problems: list[str] = []
    for at in partitions:
        if at not in ends:
            problems.append(f"none is given for {at}")
        elif not starts[at] <= ends[at] <= stable[at]:
            problems.append(
                f"the end {ends[at]} of {at} is outside the log, which has {starts[at]} to {stable[at]}"
            )
        elif not starts[at] <= firsts[at] <= ends[at]:
            problems.append(
                f"the begin {firsts[at]} of {at} is not between the log's start {starts[at]} and the end {ends[at]}"
            )
    if problems:
        raise ConfigError(f"backfill: offsets: {'; '.join(problems)}")
    return {at: OffsetRange(first=firsts[at], end=ends[at]) for at in partitions}


def _at(
    admin: OffsetsAdmin,
    requested: InputOffsets,
    partitions: Sequence[TopicPartition],
    starts: Mapping[TopicPartition, int],
    stable: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    match requested.kind:
        case "earliest":
            return starts
        case "latest":
            return stable
        case "timestamp":
            found = admin.offsets_at(partitions, requested.timestamp_ms)
            return {at: min(found[at], stable[at]) for at in partitions}
        case "offsets":
            return {at: requested.offsets[at] for at in partitions if at in requested.offsets}
