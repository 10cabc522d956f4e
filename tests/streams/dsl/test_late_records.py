from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams.operators.run import driver_of
from tests.tasks.loop.bench import Bench
from tidewheel import (
    ConfigError,
    JoinWindows,
    KStream,
    Materialized,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    Topology,
)
from tidewheel.testing import TopologyTestDriver

JSON = Serdes.json()
DEAD: dict[str, Any] = {"dead_letter_queue_topic": "dead"}
LATE: dict[str, Any] = {**DEAD, "late_records_to_dead_letter_queue": True}
Use = Callable[[KStream[Any, Any]], Any]
Letter = tuple[int, str]


def counted(windows: Any) -> Use:
    return lambda stream: stream.group_by_key().windowed_by(windows).count() and None


def summed(windows: Any) -> Use:
    def use(stream: KStream[Any, Any]) -> None:
        grouped = stream.group_by_key().windowed_by(windows).emit_strategy("on_window_close")
        grouped.reduce(lambda total, value: total + value)

    return use


def joined(stream: KStream[Any, Any]) -> None:
    stream.left_join(
        stream.filter(lambda value: value > 0),
        lambda left, right: [left, right],
        within=JoinWindows(5, grace=0),
    ).to("joined", key_serde=JSON, value_serde=JSON)


def joined_with_itself(stream: KStream[Any, Any]) -> None:
    stream.join(stream, lambda left, right: [left, right], within=JoinWindows(5, grace=0)).to(
        "joined", key_serde=JSON, value_serde=JSON
    )


def versioned(stream: KStream[Any, Any]) -> None:
    stream.to_table(store=Materialized("rows", store_type="versioned", history_retention=10))


OPERATORS: dict[str, Use] = {
    "tumbling": counted(TimeWindows(10, grace=0)),
    "hopping": counted(TimeWindows(10, advance=5, grace=0)),
    "tumbling on close": summed(TimeWindows(10, grace=0)),
    "sliding": counted(SlidingWindows(5, grace=0)),
    "sliding on close": summed(SlidingWindows(5, grace=0)),
    "sessions": counted(SessionWindows(5, grace=0)),
    "join": joined,
    "self join": joined_with_itself,
    "versioned table": versioned,
}


def letters_of(
    use: Use, times: list[int], *, record_by_record: bool, **options: Any
) -> list[Letter]:
    with driver_of(use, record_by_record=record_by_record, **options) as driver:
        driver.create_input_topic("in", key_serde=JSON, value_serde=JSON).pipe_batch(
            [("k", number, time) for number, time in enumerate(times)]
        )
        return [
            (
                int(headers["__streams.errors.offset"] or b""),
                _text(headers["__streams.errors.message"]),
            )
            for headers in (dict(letter.headers) for letter in _dead(driver))
        ]


def _dead(driver: TopologyTestDriver) -> list[Any]:
    topic = driver.create_output_topic("dead", key_serde=bytes, value_serde=bytes)
    return list(topic.read_records())


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


@pytest.mark.parametrize("record_by_record", [False, True], ids=["batch", "singly"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_late_record_is_a_dead_letter_of_its_operator(name: str, record_by_record: bool) -> None:
    times = [1, 2, 100_000_000, 3, 100_000_001]
    for settings_of, expected in ((DEAD, {}), (LATE, {3})):
        letters = letters_of(
            OPERATORS[name], times, record_by_record=record_by_record, **settings_of
        )
        assert {offset for offset, _ in letters} == set(expected)
        for _, why in letters:
            assert "timestamp 3 " in why
            assert "(task 0_0): " in why
        assert len(letters) == len(expected) * (2 if name == "join" else 1)


def test_a_dead_letter_is_the_input_record_with_headers_that_name_lateness() -> None:
    """Raw key and value, the record's headers and timestamp, then Kafka Streams' headers."""
    with driver_of(OPERATORS["tumbling"], **LATE) as driver:
        topic = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        topic.pipe_input("k", "first", timestamp=30)
        topic.pipe_input("k", "late", timestamp=9, headers=(("trace", b"7"),))
        (letter,) = _dead(driver)
    assert (letter.key, letter.value, letter.timestamp) == (b'"k"', b'"late"', 9)
    assert letter.headers[0] == ("trace", b"7")
    message = b"KSTREAM-AGGREGATE-0000000002 (task 0_0): timestamp 9 came too late for a window: stream time is 30"
    assert dict(letter.headers[1:]) == {
        "__streams.errors.exception": b"tidewheel.tasks.errors.LateRecordError",
        "__streams.errors.message": message,
        "__streams.errors.stacktrace": b"tidewheel.tasks.errors.LateRecordError: "
        + message
        + b"\n",
        "__streams.errors.topic": b"in",
        "__streams.errors.partition": b"0",
        "__streams.errors.offset": b"1",
    }


def test_a_record_that_is_late_for_some_windows_has_one_dead_letter() -> None:
    for latest, closed in ((16, "a window"), (24, "2 windows")):
        for record_by_record in (False, True):
            ((offset, why),) = letters_of(
                OPERATORS["hopping"], [12, latest, 13], record_by_record=record_by_record, **LATE
            )
            assert offset == 2
            assert why.endswith(f"13 came too late for {closed}: stream time is {latest}")


@settings(max_examples=25)
@given(
    name=st.sampled_from(sorted(OPERATORS)),
    times=st.lists(st.integers(0, 60), min_size=10, max_size=60),
)
def test_both_executors_write_the_same_dead_letters(name: str, times: list[int]) -> None:
    batch = letters_of(OPERATORS[name], times, record_by_record=False, **LATE)
    singly = letters_of(OPERATORS[name], times, record_by_record=True, **LATE)
    assert sorted(batch) == sorted(singly)
    if name.startswith("tumbling"):
        closed = [
            number
            for number, time in enumerate(times)
            if time - time % 10 + 10 <= max(times[: number + 1])
        ]
        assert [offset for offset, _ in batch] == closed


def windowed() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    counts = stream.group_by_key().windowed_by(TimeWindows(10, grace=0)).count()
    counts.to_stream(lambda key, _: key.key).to("out", key_serde=str, value_serde=int)
    return builder.build()


@pytest.mark.parametrize("threads", [1, 2])
def test_dead_letters_are_part_of_the_transaction(threads: int) -> None:
    for crash_at in ("produce", "commit", "committed", "write"):
        bench = Bench(windowed(), {"in": 1, "out": 1, "dead": 1}, commit_interval_ms=5, **LATE)
        bench.idle_polls = 3
        for key, timestamp in [("a", 5), ("b", 25), ("a", 6), ("b", 7), ("c", 26), ("c", 8)]:
            bench.send("in", key, "x", timestamp=timestamp)
        assert not bench.live(crash_at=crash_at, threads=threads)
        bench.send("in", "a", "x", timestamp=9)
        assert bench.live(threads=threads)
        letters = Counter(
            dict(each.headers)["__streams.errors.offset"] for each in bench.broker.records("dead")
        )
        assert letters == Counter({b"2": 1, b"3": 1, b"5": 1, b"6": 1})


def test_late_records_need_a_dead_letter_topic() -> None:
    with pytest.raises(
        ConfigError, match=r"late_records_to_dead_letter_queue.*set dead_letter_queue_topic"
    ):
        StreamsConfig(application_id="shop", late_records_to_dead_letter_queue=True)
