"""How failed records are found again."""

from confluent_kafka import KafkaError, Message
from hypothesis import given
from hypothesis import strategies as st

from streams.kafka.sink_producer import _halves, _located
from tests.fakes.cluster import columns

ERROR = KafkaError(KafkaError._MSG_TIMED_OUT)


@given(st.data())
def test_each_report_is_matched_to_a_row_of_its_content(data: st.DataObject) -> None:
    """Each row at most once, in order; equal rows stand for each other."""
    values = data.draw(st.lists(st.sampled_from([b"a", b"b", b"", None]), min_size=1, max_size=20))
    keys = data.draw(
        st.lists(st.sampled_from([b"k", None]), min_size=len(values), max_size=len(values))
    )
    records = columns("t", *values, keys=keys)
    other = columns("other", *values, keys=keys)
    failed = data.draw(
        st.lists(st.integers(0, len(values) - 1), unique=True, min_size=1).map(sorted)
    )
    reports = [
        (ERROR, Message(topic="t", key=keys[index], value=values[index])) for index in failed
    ]
    pending = [(each, index) for each in (other, records) for index in range(len(values))]
    found = _located(reports, pending)
    indices = [index for (found_in, index), _ in found if found_in is records]
    assert len(indices) == len(failed)
    assert indices == sorted(set(indices))
    contents = [(keys[index], values[index] or None) for index in indices]
    assert sorted(map(repr, contents)) == sorted(
        repr((keys[index], values[index] or None)) for index in failed
    )


@given(st.integers(0, 9))
def test_halves_hold_every_row_once_and_the_first_comes_last(count: int) -> None:
    """The last part is taken first, so the order of sending stays."""
    rows = [(columns("t"), index) for index in range(count)]
    parts = _halves(rows)
    assert [row for part in reversed(parts) for row in part] == rows
    assert all(parts)
