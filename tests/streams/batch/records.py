"""Random records for batch runs, and their results in the oracle's form."""

import random

from tests.streams.batch.oracle import Result, Row
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.batch.inline import InlineResult
from tidewheel.streams.serdes.partitioning import partition_of
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

Rows = dict[TopicPartition, list[Row]]


def rows_of(seed: int, topics: list[str], partitions: int, run: int) -> Rows:
    """Random records: null keys, deletions, late, equal and leaping times."""
    chance = random.Random(seed)
    rows: Rows = {}
    now = 10
    count = 0
    while count < 80:
        topic = chance.choice(topics)
        for _ in range(chance.randint(1, run)):
            count += 1
            now += chance.choice([0, 0, 1, 2, 15 if chance.random() < 0.1 else 0])
            late = chance.randint(0, 12) if chance.random() < 0.25 else 0
            key = None if chance.random() < 0.04 else chance.choice("abcdef").encode()
            value = None if chance.random() < 0.1 else f"v{count}".encode()
            headers = (("n", b"%d" % count),) if chance.random() < 0.1 else ()
            place = count % partitions if key is None else partition_of(key, partitions)
            at = TopicPartition(topic, place)
            rows.setdefault(at, []).append(Row(key, value, max(now - late, 0), headers))
    return rows


def columns_of(rows: Rows, chunk: int) -> dict[TopicPartition, list[SourceRecords]]:
    columns: dict[TopicPartition, list[SourceRecords]] = {}
    for at, every in rows.items():
        for first in range(0, len(every), chunk):
            part = every[first : first + chunk]
            with_headers = any(row.headers for row in part)
            records = SourceRecords(
                at.topic,
                at.partition,
                range(first, first + len(part)),
                [row.key for row in part],
                [row.value for row in part],
                [row.timestamp for row in part],
                [row.headers for row in part] if with_headers else None,
            )
            columns.setdefault(at, []).append(records)
    return columns


def comparable(result: InlineResult) -> Result:
    outputs: dict[TopicPartition, list[Row]] = {}
    for at in result.outputs:
        rows = outputs.setdefault(at, [])
        for records in result.records(at.topic):
            if records.partition == at.partition:
                headers = records.headers or [()] * len(records)
                rows += map(
                    Row,
                    records.raw_keys,
                    records.raw_values,
                    records.timestamps,
                    map(tuple, headers),
                )
    return Result(outputs, result.stores, result.ends)
