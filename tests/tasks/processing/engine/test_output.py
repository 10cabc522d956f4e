"""Joined outputs: complete, ordered within each topic, attributed to the right record."""

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.commit.output_collector import drop
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns, OutputRuns
from tidewheel.tasks.processing.engine.record_batch import JointRecords, SourceRecords

#: Topic, partition, node, has headers, internal, number of records.
_ADDED = st.lists(
    st.tuples(
        st.sampled_from(["one", "other"]),
        st.sampled_from([ANY_PARTITION, 0]),
        st.sampled_from(["sink", "tap"]),
        st.booleans(),
        st.booleans(),
        st.integers(1, 3) | st.just(300),
    ),
    max_size=12,
)


@given(added=_ADDED, by_record=st.booleans())
def test_outputs_of_a_range_keep_their_order_within_each_topic(
    added: list[tuple[str, int, str, bool, bool, int]], by_record: bool
) -> None:
    runs = OutputRuns()
    expected: dict[str, list[object]] = {}
    offset = 0
    for topic, partition, node, has_headers, internal, count in added:
        offsets = range(offset, offset + count)
        offset += count
        columns = OutputColumns(
            topic=topic,
            partitions=[partition] * count if by_record and partition == 0 else partition,
            keys=[b"k%d" % each for each in offsets],
            values=[b"v%d" % each for each in offsets],
            timestamps=list(offsets),
            headers=[(("h", b"%d" % each),) for each in offsets] if has_headers else None,
            node=node,
            source_offsets=offsets,
            internal=internal,
        )
        expected.setdefault(topic, []).extend(_rows(columns))
        runs.add(columns)
    found: dict[str, list[object]] = {}
    for columns in runs.pop():
        found.setdefault(columns.topic, []).extend(_rows(columns))
    assert found == expected
    assert runs.pop() == []


def _rows(columns: OutputColumns) -> list[object]:
    partitions, offsets = columns.partitions, columns.source_offsets
    assert offsets is not None
    return [
        (
            partitions if isinstance(partitions, int) else partitions[index],
            columns.keys[index],
            columns.values[index],
            columns.timestamps[index],
            () if columns.headers is None else columns.headers[index],
            columns.node,
            offsets[index],
            columns.internal,
        )
        for index in range(len(columns))
    ]


def test_outputs_of_several_inputs_name_their_input() -> None:
    parts = [
        SourceRecords(topic, 3, offsets, [None] * 2, [b"v"] * 2, [0, 0], headers)
        for topic, offsets, headers in (
            ("left", range(5, 7), None),
            ("right", range(8, 10), [(), (("h", b"1"),)]),
        )
    ]
    joint = JointRecords(parts)
    assert joint.headers == [(), (), (), (("h", b"1"),)]
    rows = [2, 0, 3, 1]
    mixed = OutputColumns(
        topic="out",
        partitions=0,
        keys=[None] * 4,
        values=[b"v"] * 4,
        timestamps=[0] * 4,
        inputs=lambda index: joint.metadata(rows[index]),
    )
    expected = [("right", 3, 8), ("left", 3, 5), ("right", 3, 9), ("left", 3, 6)]
    assert [mixed.input_of(index) for index in range(4)] == expected
    runs = OutputRuns()
    runs.add(mixed)
    runs.add(mixed)
    for columns in runs.pop():
        drop(columns, [1])
        assert [columns.input_of(index) for index in range(3)] == [expected[0], *expected[2:]]
    assert isinstance(mixed.input_of(0), RecordMetadata)
