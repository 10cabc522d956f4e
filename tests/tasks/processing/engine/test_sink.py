"""Sinks: topics, partitions, serialisation, and handlers of failures."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import Serdes
from tidewheel.streams.serdes import Serde
from tidewheel.tasks.errors import MissingOutputTopicError
from tidewheel.tasks.processing.api.record import RecordContext
from tidewheel.tasks.processing.api.topology_spec import SinkSpec
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords
from tidewheel.tasks.processing.engine.sink import Sink

PARTITIONS = 4


class Context:
    node_name = "the-sink"
    task_id = "0_1"

    def __init__(self) -> None:
        self.failures: list[tuple[int, str]] = []
        self.drops: list[tuple[int, str]] = []
        self.said: list[str] = []

    def dropped(self, count: int, reason: str, batch: RecordBatch, first: int) -> None:
        self.drops.append((count, reason))

    def failed(self, batch: RecordBatch, index: int, error: Exception) -> None:
        self.failures.append((batch.rows[index], type(error).__name__))
        self.said.append(str(error))


class Stage:
    def __init__(self, topic: Any = "out", **spec: Any) -> None:
        self.staged: list[tuple[OutputColumns, bool]] = []
        self.unserializable: list[tuple[str, int, str]] = []
        self.said: list[str] = []
        self.context = Context()
        self.missing: set[str] = set()
        self.sink = Sink(
            SinkSpec(
                **{
                    "name": "the-sink",
                    "topic": topic,
                    "parents": ("p",),
                    "key_serde": Serdes.string(),
                    "value_serde": Serdes.int64(),
                    **spec,
                }
            ),
            "app-",
            self,
            self.on_unserializable,
        )
        self.sink.init(self.context)  # type: ignore[arg-type]

    def add(self, columns: OutputColumns, *, internal: bool) -> None:
        self.staged.append((columns, internal))

    def partition_count(self, topic: str) -> int:
        if topic in self.missing:
            raise MissingOutputTopicError(topic)
        return PARTITIONS

    def on_unserializable(
        self, sink: str, batch: RecordBatch, index: int, error: Exception
    ) -> None:
        self.unserializable.append((sink, batch.rows[index], type(error).__name__))
        self.said.append(str(error))

    def process(self, batch: RecordBatch) -> list[OutputColumns]:
        assert self.sink.process(batch) is None
        return [columns for columns, _ in self.staged]


def batch_of(rows: Sequence[tuple[Any, Any]], **changes: Any) -> RecordBatch:
    count = len(rows)
    source = SourceRecords(
        "in", 2, range(100, 100 + count), [None] * count, [None] * count, range(count), None
    )
    return RecordBatch(
        [key for key, _ in rows],
        [value for _, value in rows],
        [5_000 + row for row in range(count)],
        changes.pop("headers", None),
        range(count),
        source,
        **changes,
    )


def int64(value: int | None) -> bytes | None:
    return None if value is None else value.to_bytes(8, "big", signed=True)


def test_a_batch_becomes_columns_with_their_input() -> None:
    stage = Stage()
    (columns,) = stage.process(
        batch_of([("a", 1), (None, None), ("c", 3)], headers=[(), (("h", b"1"),), ()])
    )
    assert (columns.topic, columns.partitions) == ("out", ANY_PARTITION)
    assert columns.keys == [b"a", None, b"c"]
    assert columns.values == [int64(1), None, int64(3)]
    assert columns.timestamps == [5_000, 5_001, 5_002]
    assert columns.headers == [(), (("h", b"1"),), ()]
    assert (columns.node, columns.task_id, columns.source_topic, columns.source_partition) == (
        "the-sink",
        "0_1",
        "in",
        2,
    )
    assert columns.source_offsets is not None
    assert list(columns.source_offsets) == [100, 101, 102]
    assert stage.staged[0][1] is False


def test_internal_topics_have_the_applications_prefix() -> None:
    stage = Stage("counts-repartition", internal=True)
    (columns,) = stage.process(batch_of([("a", 1)]))
    assert (columns.topic, stage.staged[0][1]) == ("app-counts-repartition", True)


def test_records_without_an_input_have_no_offsets() -> None:
    (columns,) = Stage().process(RecordBatch(["a"], [1], [5], None, (0,), None))
    assert (columns.source_topic, columns.source_partition, columns.source_offsets) == (
        None,
        None,
        None,
    )


class CountingSerde(Serde[str]):
    def __init__(self) -> None:
        super().__init__(name="counting")
        self.calls = 0

    def serialize(self, topic: str, value: str, /) -> bytes | None:
        self.calls += 1
        return value.upper().encode()


def test_serialised_keys_are_reused_only_by_their_serde() -> None:
    own = CountingSerde()
    stage = Stage(key_serde=own)
    batch = batch_of([("a", 1)], key_bytes=[b"as read"], key_serde=own)
    assert stage.process(batch)[0].keys == [b"as read"]
    assert own.calls == 0
    other = batch_of([("a", 1)], key_bytes=[b"as read"], key_serde=CountingSerde())
    assert stage.process(other)[1].keys == [b"A"]


GOOD_OR_BAD = st.sampled_from(["k", None, b"not a string"])
VALUES = st.sampled_from([7, None, "not an integer"])


@given(st.lists(st.tuples(GOOD_OR_BAD, VALUES), min_size=1, max_size=10), st.booleans())
def test_records_that_do_not_serialise_go_to_the_production_handler_once(
    rows: list[Any], with_partitioner: bool
) -> None:
    stage = Stage(partitioner=(lambda topic, key, value, count: 1) if with_partitioner else None)
    staged = stage.process(batch_of(rows))
    good = [
        row
        for row, (key, value) in enumerate(rows)
        if not isinstance(key, bytes) and not isinstance(value, str)
    ]
    assert [row for _, row, _ in stage.unserializable] == [
        row for row in range(len(rows)) if row not in good
    ]
    assert stage.context.failures == []
    if not good:
        assert staged == []
        return
    (columns,) = staged
    assert columns.keys == [None if rows[row][0] is None else b"k" for row in good]
    assert columns.values == [int64(rows[row][1]) for row in good]
    assert columns.timestamps == [5_000 + row for row in good]
    assert columns.source_offsets is not None
    assert list(columns.source_offsets) == [100 + row for row in good]
    assert columns.partitions == ([1] * len(good) if with_partitioner else ANY_PARTITION)


# -- topics -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 9)), min_size=1))
def test_topic_functions_choose_the_topic_of_each_record(
    rows: list[tuple[str | None, int]],
) -> None:
    seen: list[Any] = []

    def choose(key: str | None, value: int, context: RecordContext) -> str:
        seen.append((key, value, context))
        return f"to-{key}"

    columns = Stage(choose).process(batch_of(rows))
    assert [(key, value) for key, value, _ in seen] == rows
    assert seen[-1][2] == RecordContext("in", 2, 100 + len(rows) - 1, 5_000 + len(rows) - 1, ())
    assert {each.topic: each.values for each in columns} == {
        f"to-{name}": [int64(value) for key, value in rows if key == name]
        for name in {key for key, _ in rows}
    }


@pytest.mark.parametrize("chosen", [None, "", 7, b"topic", ValueError("no topic for it")])
def test_a_topic_function_that_fails_goes_to_the_processing_handler(chosen: Any) -> None:
    def choose(key: str, value: int, context: RecordContext) -> Any:
        if value != 2:
            return "out"
        if isinstance(chosen, Exception):
            raise chosen
        return chosen

    stage = Stage(choose)
    (columns,) = stage.process(batch_of([("a", 1), ("b", 2), ("c", 3)]))
    assert columns.keys == [b"a", b"c"]
    assert stage.context.failures == [
        (1, "ValueError" if isinstance(chosen, Exception) else "TypeError")
    ]


@pytest.mark.parametrize("bad", ["not there", "missing", "x" * 250, ".", "schräg"])
def test_a_topic_that_cannot_be_written_goes_to_the_production_handler(bad: str) -> None:
    stage = Stage(lambda key, value, context: bad if value == 2 else "out")
    stage.missing.add("missing")
    (columns,) = stage.process(batch_of([("a", 1), ("b", 2), ("c", 3), ("d", 2)]))
    assert columns.keys == [b"a", b"c"]
    assert [(sink, row) for sink, row, _ in stage.unserializable] == [
        ("the-sink", 1),
        ("the-sink", 3),
    ]
    assert stage.context.failures == []


def test_every_partition_is_a_broadcast() -> None:
    stage = Stage(partitioner=lambda topic, key, value, count: range(count))
    (columns,) = stage.process(batch_of([("a", 1)]))
    assert columns.partitions == list(range(PARTITIONS))
    assert columns.keys == [b"a"] * PARTITIONS


# -- partitions -------------------------------------------------------------------------------------------------------

CHOICES = (
    st.none()
    | st.integers(0, PARTITIONS - 1)
    | st.lists(st.integers(0, PARTITIONS - 1), max_size=3)
)


@given(st.lists(CHOICES, min_size=1, max_size=8))
def test_partitioners_place_multicast_drop_or_leave_it_to_the_default(choices: list[Any]) -> None:
    """KIP-837: a number, several numbers, none (dropped), or None (default)."""
    asked: list[Any] = []

    def partitioner(topic: str, key: str, value: int, count: int) -> Any:
        asked.append((topic, key, value, count))
        return choices[value]

    rows = [(f"k{index}", index) for index in range(len(choices))]
    stage = Stage(partitioner=partitioner)
    staged = stage.process(batch_of(rows))
    assert len(stage.context.drops) == choices.count([])
    assert asked == [("out", key, value, PARTITIONS) for key, value in rows]
    expected = [
        (partition, key.encode(), int64(value))
        for (key, value), choice in zip(rows, choices, strict=True)
        for partition in (
            [ANY_PARTITION]
            if choice is None
            else [choice]
            if isinstance(choice, int)
            else dict.fromkeys(choice)
        )
    ]
    rows_staged = [
        row
        for columns in staged
        for row in zip(columns.partitions, columns.keys, columns.values, strict=True)  # type: ignore[arg-type]
    ]
    assert rows_staged == expected


@pytest.mark.parametrize(
    "chosen", [-2, -1, PARTITIONS, [0, PARTITIONS], "1", 0.5, KeyError("no partition")]
)
def test_a_partitioner_that_fails_goes_to_the_production_handler(chosen: Any) -> None:
    def partitioner(topic: str, key: str, value: int, count: int) -> Any:
        if value != 2:
            return 1
        if isinstance(chosen, Exception):
            raise chosen
        return chosen

    stage = Stage(partitioner=partitioner)
    (columns,) = stage.process(batch_of([("a", 1), ("b", 2), ("c", 3)]))
    assert (columns.keys, columns.partitions) == ([b"a", b"c"], [1, 1])
    assert [(sink, row) for sink, row, _ in stage.unserializable] == [("the-sink", 1)]


class Whole:
    def __index__(self) -> int:
        return 2


def test_partitions_may_be_integers_of_other_libraries() -> None:
    stage = Stage(
        partitioner=lambda topic, key, value, count: Whole() if value == 1 else [Whole(), 0]
    )
    (columns,) = stage.process(batch_of([("a", 1), ("b", 2)]))
    assert columns.partitions == [2, 2, 0]
    assert isinstance(columns.partitions, list)
    assert all(type(partition) is int for partition in columns.partitions)


# -- awaitables -------------------------------------------------------------------------------


async def one(*_record: Any) -> int:
    return 1


async def many(*_record: Any) -> AsyncIterator[int]:
    yield 1


class Later:
    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    ("returned", "what"),
    [(one, "a coroutine"), (many, "type async_generator"), (lambda *_: Later(), "type Later")],
)
def test_a_partition_that_would_have_to_be_awaited_fails_its_record(
    returned: Callable[..., Any], what: str
) -> None:
    stage = Stage(
        partitioner=lambda *record: returned(*record) if record[2] == 2 else 3, location="app.py:7"
    )
    (columns,) = stage.process(batch_of([("a", 1), ("b", 2)]))
    assert (columns.keys, columns.partitions) == ([b"a"], [3])
    assert stage.unserializable == [("the-sink", 1, "TypeError")]
    (said,) = stage.said
    assert f"the partitioner of the-sink (app.py:7) returned {what}" in said.replace(
        "an object of ", ""
    )
    assert said.endswith("give a plain function that returns the answer")


def test_a_topic_that_would_have_to_be_awaited_fails_its_record() -> None:
    stage = Stage(lambda *record: one(*record) if record[1] == 2 else "there")
    (columns,) = stage.process(batch_of([("a", 1), ("b", 2)]))
    assert (columns.topic, columns.keys) == ("there", [b"a"])
    assert stage.context.failures == [(1, "TypeError")]
    (said,) = stage.context.said
    assert said.startswith("the topic function of the-sink returned a coroutine")
