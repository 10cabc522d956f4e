from itertools import accumulate, groupby

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.cluster import rows
from tidewheel.streams.kafka.client.records import oversized, record_size_bytes, to_runs
from tidewheel.tasks.processing.engine.output import OutputColumns

BYTES = st.one_of(st.none(), st.binary(max_size=5))
HEADERS = st.one_of(
    st.none(), st.lists(st.tuples(st.text(max_size=3), BYTES), min_size=1, max_size=2)
)


@st.composite
def messages(draw: st.DrawFn) -> list[Message]:
    places = draw(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1)), min_size=1, max_size=30)
    )
    gaps = draw(st.lists(st.integers(1, 2), min_size=len(places), max_size=len(places)))
    if draw(st.booleans()):  # Long runs are the usual case and have a fast path.
        places = [places[0]] * len(places)
    return [
        Message(
            topic=topic,
            partition=partition,
            offset=offset,
            key=draw(BYTES),
            value=draw(BYTES),
            headers=draw(HEADERS),  # type: ignore[arg-type]  # of bytes only, which the stub has no word for
            timestamp=(1, draw(st.integers(-1, 10))),
        )
        for offset, (topic, partition) in zip(accumulate(gaps), places, strict=True)
    ]


@given(messages())
def test_runs_equal_a_grouping_by_hand(given_messages: list[Message]) -> None:
    runs = to_runs(given_messages)
    place_of = lambda each: (each.topic(), each.partition())  # noqa: E731 - twice a key
    as_they_came = [(place, list(group)) for place, group in groupby(given_messages, place_of)]
    if len(as_they_came) > len(dict(as_they_came)):
        ordered = sorted(given_messages, key=place_of)
        as_they_came = [(place, list(group)) for place, group in groupby(ordered, place_of)]
    by_hand = [(place, [_row(message) for message in group]) for place, group in as_they_came]
    assert [
        ((run.topic, run.partition), [tuple(row) for row in rows(run)]) for run in runs
    ] == by_hand
    for run, (_, expected) in zip(runs, by_hand, strict=True):
        assert (run.headers is None) == (not any(row[-1] for row in expected))


@given(messages())
def test_a_known_topic_and_unread_headers_change_nothing_else(
    given_messages: list[Message],
) -> None:
    one_topic = [message for message in given_messages if message.topic() == "a"]
    if not one_topic:
        return
    short = to_runs(one_topic, topic="a", with_headers=False)
    full = to_runs(one_topic)
    assert [(run.topic, run.partition, list(run.offsets), run.raw_values) for run in short] == [
        (run.topic, run.partition, list(run.offsets), run.raw_values) for run in full
    ]
    assert all(run.headers is None for run in short)


RECORDS = st.lists(
    st.tuples(BYTES, st.one_of(st.none(), st.binary(max_size=40)), HEADERS), min_size=0, max_size=20
)


@given(RECORDS, st.integers(60, 160), st.booleans())
def test_oversized_records_equal_those_of_a_check_of_each_record(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]],
    limit: int,
    headed: bool,
) -> None:
    headers = [tuple(each or ()) for _, _, each in records] if headed else None
    columns = OutputColumns(
        topic="t",
        partitions=0,
        keys=[key for key, _, _ in records],
        values=[value for _, value, _ in records],
        timestamps=[0] * len(records),
        headers=headers,
    )
    expected = [
        index
        for index, (key, value, _) in enumerate(records)
        if record_size_bytes(key, value, headers[index] if headers is not None else ()) > limit
    ]
    assert oversized(columns, limit) == expected


def test_the_size_is_never_below_the_size_that_kafka_counts() -> None:
    assert record_size_bytes(None, None) >= 61 + 21
    assert record_size_bytes(b"k" * 10, b"v" * 100) >= 61 + 21 + 110
    assert record_size_bytes(b"", b"", (("name", b"value"), ("n", None))) >= 61 + 21 + 4 + 5 + 1 + 4


def _row(message: Message) -> tuple[object, ...]:
    return (
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.timestamp()[1],
        tuple(message.headers() or ()),
    )
