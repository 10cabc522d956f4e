"""Blobs and their merge: nothing is lost, and the order does not depend on the blobs' sizes."""

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.batch.blobs import Blob, Outbox
from tidewheel.tasks.batch.merge import merged
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns

TIMES = st.lists(st.integers(0, 6), max_size=12)


def blobs_of(task: int, orders: list[int], size: int) -> list[Blob]:
    return [
        Blob(
            topic="t",
            partition=0,
            task=(0, task),
            number=number,
            orders=orders[first : first + size],
            keys=[b"%d" % task] * len(orders[first : first + size]),
            values=[b"%d" % place for place in range(first, min(first + size, len(orders)))],
            timestamps=orders[first : first + size],
            headers=None if number % 2 else [(("n", b"1"),)] * len(orders[first : first + size]),
        )
        for number, first in enumerate(range(0, len(orders), size))
    ]


@given(streams=st.lists(st.tuples(TIMES.map(sorted), st.integers(1, 5)), max_size=4))
def test_records_are_merged_by_order_then_stream_then_place(
    streams: list[tuple[list[int], int]],
) -> None:
    blobs = [blobs_of(task, orders, size) for task, (orders, size) in enumerate(streams)]
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offsets: list[int] = []
    headers = 0
    for records in merged(blobs):
        assert records.order_ms is not None
        assert len(records) > 0
        offsets += records.offsets
        headers += sum(map(bool, records.headers or ()))
        found += zip(records.order_ms, records.raw_keys, records.raw_values, strict=True)
    assert found == sorted(
        (
            (order, b"%d" % task, b"%d" % place)
            for task, (orders, _) in enumerate(streams)
            for place, order in enumerate(orders)
        ),
        key=lambda each: (each[0], each[1], int(each[2])),
    )
    assert offsets == list(range(len(found)))
    assert headers == sum(
        len(blob) for stream in blobs for blob in stream if blob.headers is not None
    )


Rows = list[tuple[bytes | None, int]]


@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.sampled_from([None, b"0", b"1", b"2"]), st.integers(0, 9)), min_size=1
        )
    ),
    size=st.integers(1, 5),
    count=st.integers(1, 3),
)
def test_an_outbox_keeps_each_record_once_in_its_partition(
    batches: list[Rows], size: int, count: int
) -> None:
    outbox = Outbox(
        (1, 0),
        partition_count=lambda _topic: count,
        partition_of=lambda key, partitions: int(key) % partitions,
        blob_records=size,
    )
    blobs: list[Blob] = []
    for rows in batches:
        columns = OutputColumns(
            topic="t",
            partitions=ANY_PARTITION,
            keys=[key for key, _ in rows],
            values=[b"%d" % time for _, time in rows],
            timestamps=[time for _, time in rows],
        )
        blobs += outbox.add(columns, None)
    blobs += outbox.flush()
    every = [row for rows in batches for row in rows]
    for partition in range(count):
        own = [Blob.decode(blob.encode()) for blob in blobs if blob.partition == partition]
        assert [blob.number for blob in own] == list(range(len(own)))
        found = [
            row for blob in own for row in zip(blob.keys, blob.timestamps, blob.orders, strict=True)
        ]
        latest = -1
        turn = 0
        expected: list[tuple[bytes | None, int, int]] = []
        for key, time in every:
            place = turn % count if key is None else int(key) % count
            turn += key is None
            if place == partition:
                latest = max(latest, time)
                expected.append((key, time, latest))
        assert found == expected
