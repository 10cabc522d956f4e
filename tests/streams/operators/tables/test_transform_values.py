from typing import Any, ClassVar

import pytest

from tests.streams.operators.run import JSON, driver_of, outputs, run
from tidewheel import (
    Materialized,
    Processor,
    PunctuationType,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TopologyError,
    ValueTransformerWithKey,
)
from tidewheel.testing import TopologyTestDriver

KEYED: dict[str, Any] = {"key_serde": JSON, "value_serde": JSON}


class Noting(ValueTransformerWithKey[str, Any, Any]):
    asked: ClassVar[list[Any]] = []
    closed: ClassVar[int] = 0

    def transform(self, key: str, value: Any) -> Any:
        self.asked.append((key, value))
        return None if value is None else value * 10

    def close(self) -> None:
        Noting.closed += 1


@pytest.fixture(autouse=True)
def nothing_noted() -> None:
    Noting.asked.clear()
    Noting.closed = 0


def table_of(stream: Any) -> Any:
    return stream.to_table(store=Materialized("table", **KEYED), **KEYED)


@pytest.mark.parametrize("kept", [False, True])
def test_every_row_is_transformed_also_a_deleted_one(kept: bool) -> None:
    store = Materialized("kept", **KEYED) if kept else None
    rows = [("a", 1, 1), ("a", None, 2), ("b", 2, 3), (None, 3, 4)]
    with driver_of(
        lambda s: table_of(s).transform_values(Noting, store=store).to_stream()
    ) as driver:
        driver.create_input_topic("in", **KEYED).pipe_batch(rows)
        assert outputs(driver) == [("a", 10, 1), ("a", None, 2), ("b", 20, 3)]
        if kept:
            found = driver.get_state_store("kept").all()
            assert [(key, row.value) for key, row in found] == [("b", 20)]
    assert Noting.asked == [("a", 1), ("a", None), ("b", 2)]
    assert Noting.closed == 1


@pytest.mark.parametrize("kept", [False, True])
def test_an_aggregation_below_gets_old_values(kept: bool) -> None:
    store = Materialized("kept", **KEYED) if kept else None

    def use(stream: Any) -> Any:
        table = table_of(stream).transform_values(Noting, store=store)
        grouped = table.group_by(lambda k, v: ("all", v), **KEYED)
        return grouped.reduce(lambda total, v: total + v, lambda total, v: total - v).to_stream()

    assert run(use, [("a", 1, 1), ("a", 2, 2), ("a", None, 3)]) == [
        ("all", 10, 1),
        ("all", 20, 2),
        ("all", 0, 3),
    ]
    asked = [value for _, value in Noting.asked]
    assert asked == ([1, 2, None] if kept else [1, None, 2, 1, None, 2])


def test_a_row_on_which_the_transformer_fails_is_passed_to_the_handler() -> None:
    class Failing(ValueTransformerWithKey[str, int, int]):
        def transform(self, key: str, value: int | None) -> int:
            assert value is not None
            return 100 // value

    rows = [("a", 5, 1), ("b", 0, 2), ("c", 4, 3)]
    use: Any = lambda s: table_of(s).transform_values(Failing).to_stream()  # noqa: E731 - one line is clearer
    assert run(use, rows, processing_exception_handler="continue") == [("a", 20, 1), ("c", 25, 3)]


class Counting(ValueTransformerWithKey[str, str, str]):
    stores: ClassVar[list[Any]] = [
        Stores.key_value("changes", key_serde=str, value_serde=int, persistent=False)
    ]

    def init(self, context: Any) -> None:
        super().init(context)
        self.changes = context.get_state_store("changes")
        self.ticks = 0
        context.schedule(10, PunctuationType.STREAM_TIME, self.tick)

    def tick(self, now_ms: int) -> None:
        self.ticks += 1

    def transform(self, key: str, value: str | None) -> str:
        count = (self.changes.get(key) or 0) + 1
        self.changes.put(key, count)
        place = self.context.record_metadata
        at = "nowhere" if place is None else f"{place.topic}@{place.offset}"
        return f"{value} #{count} {at} {self.context.current_stream_time_ms()} {self.ticks}"


def test_a_transformer_may_use_stores_schedules_and_record_metadata() -> None:
    rows = [("a", "x", 1), ("b", "y", 12), ("a", None, 5)]
    with driver_of(lambda s: table_of(s).transform_values(Counting).to_stream()) as driver:
        driver.create_input_topic("in", **KEYED).pipe_batch(rows)
        assert [value for _, value, _ in outputs(driver)] == [
            "x #1 in@0 1 0",
            "y #1 in@1 12 1",
            "None #2 in@2 12 2",
        ]


def test_stores_that_were_added_are_named_also_by_position() -> None:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("seen", **KEYED))
    builder.table("in", **KEYED).transform_values(Noting, ["seen"])
    text = str(builder.build().describe())
    assert "KTABLE-TRANSFORMVALUES-0000000003 (stores: [seen])" in text


def test_describe_gives_the_reason_for_record_by_record_execution() -> None:
    builder = StreamsBuilder()
    builder.table("in", **KEYED).transform_values(Noting)
    text = str(builder.build().describe(execution=True))
    assert "record by record: KTABLE-TRANSFORMVALUES-0000000003 runs a transformer of val" in text


def test_a_join_computes_rows_with_the_transformer() -> None:
    builder = StreamsBuilder()
    table = builder.table("table", **KEYED).transform_values(Counting)
    builder.stream("in", **KEYED).left_join(table, lambda one, two: [one, two]).to("out", **KEYED)
    config = StreamsConfig(
        application_id="t", bootstrap_servers="unused:9092", statestore_cache_max_bytes=0
    )
    with TopologyTestDriver(builder.build(config), config) as driver:
        driver.create_input_topic("table", **KEYED).pipe_input("a", "x", 1)
        driver.create_input_topic("in", **KEYED).pipe_batch([("a", 1, 2), ("b", 2, 3)])
        assert [value for _, value, _ in outputs(driver)] == [
            [1, "x #2 nowhere 2 1"],
            [2, "None #1 nowhere 3 1"],
        ]


def test_a_transformer_can_not_forward_records() -> None:
    class Forwarding(ValueTransformerWithKey[str, int, int]):
        def transform(self, key: str, value: int | None) -> int | None:
            context: Any = self.context
            context.forward("anything")
            return value

    with driver_of(lambda s: table_of(s).transform_values(Forwarding).to_stream()) as driver:
        source = driver.create_input_topic("in", **KEYED)
        with pytest.raises(Exception, match="KTABLE-TRANSFORMVALUES"):
            source.pipe_input("a", 1, 1)


def test_suppliers_of_other_things_are_refused() -> None:
    table: Any = StreamsBuilder().table("in", key_serde=str, value_serde=Serdes.string())
    where = r"transform_values \(.*test_transform_values.py:\d+\): "
    with pytest.raises(TopologyError, match=where + "the supplier is an object of type Noting"):
        table.transform_values(Noting())
    with pytest.raises(
        TopologyError, match=where + r".* Processor, not a Value.* or give it to proc"
    ):
        table.transform_values(Processor)
    with pytest.raises(TopologyError, match=where + "the supplier is of type int; give a ValueTr"):
        table.transform_values(5)
