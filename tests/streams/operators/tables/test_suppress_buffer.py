"""Suppression buffer: the oldest row first, for any size of the index."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.loop.bench import Bench
from tidewheel import BufferConfig, Serdes, SerializationError, StreamsBuilder, Suppressed, Topology
from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.operators.tables.suppress_buffer import SuppressBuffer
from tidewheel.streams.serdes.buffered import Buffered, BufferedSerde, Context

SPEC = StoreSpec(
    name="held",
    kind=StoreKind.KEY_VALUE,
    key_serde=Serdes.bytes(),
    value_serde=BufferedSerde(Serdes.bytes()),
)

OPTIONAL = st.none() | st.binary(max_size=3)


@given(
    st.integers(-1, 1 << 62),
    st.tuples(
        st.integers(-1, 1 << 62), st.text(max_size=3), st.integers(-1, 9), st.integers(-1, 9)
    ),
    OPTIONAL,
    OPTIONAL,
    OPTIONAL,
    st.lists(st.tuples(st.text(max_size=3), OPTIONAL), max_size=3),
)
def test_a_row_is_read_back_as_it_was_written(
    time: int,
    source: tuple[int, str, int, int],
    prior: bytes | None,
    old: bytes | None,
    new: bytes | None,
    headers: list[Any],
) -> None:
    row = Buffered(time, Context(*source, tuple(headers)), prior, old, new)
    serde = BufferedSerde(Serdes.bytes())
    assert serde.deserialize("t", serde.serialize("t", row)) == row


PUTS = st.tuples(st.just("put"), st.integers(0, 12), st.integers(0, 6))
STEPS = st.lists(
    st.one_of(
        PUTS,
        PUTS,
        PUTS,
        st.tuples(st.just("take"), st.just(0), st.just(0)),
        st.tuples(st.sampled_from(["commit", "reopen"]), st.just(0), st.just(0)),
    ),
    min_size=10,
    max_size=40,
)


#: Kafka Streams' size of timestamp, offset and partition.
_CONTEXT_BYTES = 20


def held_row(time: int, number: int) -> Buffered:
    return Buffered(time, Context(number), None, None, b"%d" % number)


def commit(rows: CommitBuffer, database: InMemoryDatabase) -> None:
    database.write({SPEC.name: rows.drain().stored}, {})
    rows.applied()


@settings(max_examples=80)
@given(STEPS, st.integers(1, 3))
def test_the_oldest_row_is_removed_first_after_any_steps(steps: list[Any], indexed: int) -> None:
    database = InMemoryDatabase([SPEC.name])
    rows = CommitBuffer(SPEC, database, topic="held", read_cache_bytes=0)
    held = SuppressBuffer(rows, indexed_rows=indexed)
    model: dict[bytes, tuple[int, int]] = {}
    for number, (step, key, time) in enumerate(steps):
        data = b"k%d" % key
        if step == "put":
            first_time = model.get(data, (time, 0))[0]
            model[data] = (first_time, number)
            held.put(data, held_row(first_time, number))
        elif step == "take" and model:
            first = min(model, key=lambda name: (model[name][0], name))
            assert held.first_time == model[first][0]
            taken = held.pop_first()
            assert (taken.key_bytes, taken.row.context.timestamp) == (first, model[first][1])
            assert taken.row.new == b"%d" % taken.row.context.timestamp
            del model[first]
        elif step == "commit":
            commit(rows, database)
        elif step == "reopen":
            commit(rows, database)
            rows = CommitBuffer(SPEC, database, topic="held", read_cache_bytes=0)
            held = SuppressBuffer(rows, indexed_rows=indexed)
        assert held.records == len(model)
        assert held.size_bytes == sum(
            len(name) + 8 + _CONTEXT_BYTES + len(b"%d" % number)
            for name, (_, number) in model.items()
        )
    rest = [held.pop_first().key_bytes for _ in model]
    assert rest == sorted(model, key=lambda name: (model[name][0], name))
    assert held.first_time is None


# -- restarts ----------------------------------------------------------------------------------------------------------

CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.none() | st.sampled_from("xyz"), st.integers(0, 15)),
    min_size=4,
    max_size=20,
)


def holding_back() -> Topology:
    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
    buffer = BufferConfig.max_records(3)
    builder.table("in", **text).suppress(
        Suppressed.until_time_limit(5, buffer), name="held"
    ).to_stream().to("out", **text)
    return builder.build()


def outputs(*parts: list[Any], crash_after: int | None = None, lose_disk: bool = False) -> Any:
    """Each part runs in a new life of the application; the first may crash."""
    bench = Bench(holding_back(), {"in": 1, "out": 1}, cache_bytes=0)
    for index, part in enumerate(parts):
        for key, value, time in part:
            bench.send("in", key, value, timestamp=time)
        bench.live(crash_after=crash_after if index == 0 else None)
        if lose_disk:
            bench.disk.versions.clear()
    return bench.outputs("out")


@settings(max_examples=20)
@given(CHANGES, st.integers(0, 20), st.none() | st.integers(0, 40), st.booleans())
def test_a_restart_at_any_point_keeps_the_same_rows_suppressed(
    changes: list[Any], cut: int, crash: int | None, lose_disk: bool
) -> None:
    assert outputs(changes[:cut], changes[cut:], crash_after=crash, lose_disk=lose_disk) == outputs(
        changes
    )


def test_stream_time_survives_a_restart() -> None:
    assert outputs([("a", "x", 100)], [("b", "y", 3)]) == [("b", b"y")]


def test_a_row_keeps_its_time_over_a_restart() -> None:
    assert outputs([("a", "x", 0), ("a", "y", 4)], [("b", "z", 5)]) == [("a", b"y")]


def test_the_changelog_has_the_keys_of_the_rows() -> None:
    """As in Kafka Streams; an emitted row is a tombstone in the changelog."""
    bench = Bench(holding_back(), {"in": 1, "out": 1}, cache_bytes=0)
    bench.send("in", "a", "x", timestamp=1)
    bench.send("in", "b", "y", timestamp=2)
    assert bench.live()
    assert sorted(bench.rows("held-store")) == [b"a", b"b"]
    bench.send("in", "c", "z", timestamp=6)
    assert bench.live()
    assert sorted(bench.rows("held-store")) == [b"b", b"c"]
    records = bench.broker.records("app-held-store-changelog")
    assert [(record.key, record.value is None) for record in records] == [
        (b"a", False), (b"b", False), (b"a", True), (b"c", False)
    ]  # fmt: skip
    assert {record.headers for record in records} == {(("v", b"\x03"),)}


def test_bytes_are_kafka_streams() -> None:
    row = Buffered(9, Context(5, "in", 1, 7, (("h", None),)), b"p", b"p", b"new")
    assert BufferedSerde(Serdes.bytes()).serialize("t", row) == (
        b"\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x07\0\0\0\x02in\0\0\0\x01\0\0\0\x01"
        b"\0\0\0\x01h\xff\xff\xff\xff\0\0\0\x01p\xff\xff\xff\xfe\0\0\0\x03new\0\0\0\0\0\0\0\x09"
    )


@pytest.mark.parametrize("data", [b"", b"\x01" * 13, bytes(40) + b"\xff"])
def test_bytes_of_no_known_format_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="no known format"):
        BufferedSerde(Serdes.bytes()).deserialize("t", data)
