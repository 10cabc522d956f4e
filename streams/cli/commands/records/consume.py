"""`tidewheel consume`: the records of a topic, as JSON lines."""

import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Literal

from cyclopts import Parameter

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.commands.records.cluster import (
    check_count,
    chosen_partitions,
    client_settings,
    cluster_admin,
    partitions_of,
)
from tidewheel.streams.cli.commands.records.record_lines import RecordLines, record_lines
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.consumers.topic_reader import KafkaTopicReader
from tidewheel.tasks.kafka.ports import Admin

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

_POLL_RECORDS = 1_000
_POLL_S = 0.2


def consume(
    topic: str,
    /,
    *,
    key: str | None = None,
    value: str | None = None,
    from_beginning: _Flag = False,
    until_end: _Flag = False,
    count: int | None = None,
    partition: int | None = None,
    offset: int | None = None,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    registry: Annotated[Sequence[str], Parameter(negative=(), show_default=False)] = (),
    json: _Flag = False,  # noqa: ARG001 - scripts give it to all commands that print
    settings: SettingsOptions | None = None,
) -> int:
    """Print the records of a topic until Ctrl-C, one JSON object a line.

    Each line has partition, offset, timestamp, key, value and, if there are any, headers. Bytes
    that are not UTF-8 are {"base64": …}. It reads without a group and commits nothing.

    Exit codes: 0 ended by Ctrl-C, --count, --until-end or --offset; 1 a record does not fit the serdes; 5 no
    such topic; 7 Kafka could not be reached.

    Args:
        topic: The topic.
        key: Serde of keys: bytes, string, int32, int64, float64, boolean, uuid, json, msgpack;
            avro or json_schema (schema from --registry), avro:FILE, avro:SUBJECT,
            protobuf:MODULE:CLASS, windowed:string:1m, session_windowed:string, or MODULE:NAME of a
            serde of your own. Default: the serde of the setting `topology` (tidewheel.toml) if that
            reads or writes the topic, else string.
        value: Serde of values, likewise.
        from_beginning: Begin with the oldest record; default: with the next one.
        until_end: End after the last record that the topic has at the start.
        count: End after this number of records.
        partition: Only this partition.
        offset: Begin with this offset of the partition; without --count or --until-end print the
            record there, and end.
        isolation: read_uncommitted also prints records of open and aborted transactions.
        registry: URL of a schema registry, or a property of its client as name=value. Repeatable.
        json: Print JSON lines, as always.
        settings: Settings.
    """
    check_count(count)
    lines = record_lines(topic, key, value, registry, settings)
    clients, committed_only = client_settings(settings), isolation == "read_committed"
    with cluster_admin(clients) as admin:
        every = partitions_of(admin, topic, clients.bootstrap_servers)
        partitions = chosen_partitions(every, partition)
        ends = _ends(admin, partitions, committed_only=committed_only)
        positions = (
            admin.beginning_offsets(partitions) if from_beginning or offset is not None else ends
        )
        if offset is not None:
            positions = _at(offset, positions, ends, from_beginning=from_beginning)
            if count is None and not until_end:
                count, until_end = 1, True  # a transaction's marker has no record
    reader = KafkaTopicReader(clients, committed_only=committed_only)
    try:
        reader.assign(positions)
        _print(reader, lines, ends if until_end else None, count)
    except KeyboardInterrupt:
        if count is not None or until_end:
            raise
    finally:
        reader.close()
    return ExitCode.OK


def _at(
    offset: int,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    from_beginning: bool,
) -> Mapping[TopicPartition, int]:
    """Return the position of `--offset`; raise `ConfigError` if there is no such record."""
    if from_beginning:
        raise ConfigError("--offset and --from-beginning are two places to begin; give one of them")
    if len(starts) > 1:
        raise ConfigError(f"--offset {offset}: offsets count in a partition; give --partition too")
    ((partition, start),) = starts.items()
    if not start <= offset < ends[partition]:
        raise ConfigError(
            f"--offset {offset}: {partition.topic}-{partition.partition} has "
            + (
                f"offsets {start} to {ends[partition] - 1}"
                if start < ends[partition]
                else "no records"
            )
        )
    return {partition: offset}


def _ends(
    admin: Admin, partitions: Sequence[TopicPartition], *, committed_only: bool
) -> Mapping[TopicPartition, int]:
    return admin.stable_offsets(partitions) if committed_only else admin.end_offsets(partitions)


def _print(
    reader: KafkaTopicReader,
    lines: RecordLines,
    ends: Mapping[TopicPartition, int] | None,
    count: int | None,
) -> None:
    """Print records until `count`, or until each partition has reached its end in `ends`."""
    left = count
    while ends is None or not _is_read(reader, ends):
        for run in reader.poll(_POLL_RECORDS, _POLL_S):
            for line in islice(lines.lines(run), left):
                sys.stdout.write(f"{line}\n")
            if left is not None:
                left -= min(left, len(run))
        sys.stdout.flush()
        if left == 0:
            return


def _is_read(reader: KafkaTopicReader, ends: Mapping[TopicPartition, int]) -> bool:
    positions = reader.positions()
    return all(positions[partition] >= end for partition, end in ends.items())
