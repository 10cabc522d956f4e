from confluent_kafka import KafkaError, Message
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.cluster import columns
from tidewheel.streams.kafka.producers.sink_producer import _located, _parts, _RecordError

ERROR = KafkaError(KafkaError._MSG_TIMED_OUT)


@given(st.data())
def test_each_report_is_matched_to_a_row_of_its_content(data: st.DataObject) -> None:
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
    places = [(number, index) for number in range(2) for index in range(len(values))]
    found = _located(reports, [other, records], places)
    indices = [index for number, index in found if number == 1]
    assert len(indices) == len(failed)
    assert indices == sorted(set(indices))
    contents = [(keys[index], values[index] or None) for index in indices]
    assert sorted(map(repr, contents)) == sorted(
        repr((keys[index], values[index] or None)) for index in failed
    )


@given(
    st.lists(st.sampled_from(["named", "other", "batch", "accepted"]), min_size=2, max_size=12),
    st.booleans(),
)
def test_parts_contain_every_record_once_in_order_and_are_smaller(
    kinds: list[str], alone: bool
) -> None:
    errors = {
        "named": _RecordError(KafkaError(KafkaError.INVALID_RECORD), 1),
        "other": _RecordError(KafkaError(KafkaError._INVALID_DIFFERENT_RECORD), 1),
        "batch": _RecordError(KafkaError(KafkaError.INVALID_RECORD), 2),
    }
    kinds[0] = "batch" if kinds[0] == "accepted" else kinds[0]
    places = [(0, index) for index in range(len(kinds))]
    answers = {
        place: errors[kind] for place, kind in zip(places, kinds, strict=True) if kind in errors
    }
    parts = _parts(places, answers, len(kinds) + (0 if alone else 5))
    assert [place for part in parts for place in part] == places
    assert all(parts)
    assert max(map(len, parts)) < len(kinds) or not alone
    if "other" in kinds:
        assert all(
            [place] in parts for place, kind in zip(places, kinds, strict=True) if kind == "named"
        )
