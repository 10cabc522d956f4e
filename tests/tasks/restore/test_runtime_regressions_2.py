"""Regressions of the runtime."""

from typing import Any

from tests.tasks.loop.bench import Bench, Crash
from tidewheel import Materialized, Processor, Serdes, StreamsBuilder, StreamsConfig
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp
from tidewheel.testing import TopologyTestDriver

STRING, INT = Serdes.string(), Serdes.int64()
TEXT: dict[str, Any] = {"key_serde": STRING, "value_serde": STRING}


# 9: a put during a flush into a cached table that was flushed already
def test_rows_a_flush_writes_to_another_cached_table_are_forwarded_in_the_same_commit() -> None:
    builder = StreamsBuilder()
    builder.table("t", store=Materialized("rows"), **TEXT).to_stream().to("out", **TEXT)

    class Put(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:

            self.context.get_state_store("rows").put(
                record.key, ValueAndTimestamp(str(record.value), record.timestamp)
            )

    builder.stream("in", **TEXT).group_by_key().count(store="counts").to_stream().process(
        Put, stores=["rows"]
    )
    bench = Bench(builder.build(), {"in": 1, "t": 1, "out": 1}, cache_bytes=1_000_000)
    bench.send("in", "a", "v")

    def die(worker: Any, _s: Any) -> None:

        if bench.rows("rows"):
            raise Crash("kill -9 after the commit that made the row durable")

    bench.at_poll.append(die)
    assert not bench.live()
    bench.at_poll.clear()
    assert bench.rows("rows")
    assert bench.live()
    assert bench.outputs("out") == [("a", b"1")], bench.outputs("out")


# 10: predicate results without a truth value
def test_a_predicate_result_without_truth_value_goes_to_the_handler() -> None:
    class NA:
        def __bool__(self) -> bool:
            raise TypeError("boolean value of NA is ambiguous")

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).filter(lambda value: NA() if value == "bad" else True).to(
        "out", **TEXT
    )
    config = StreamsConfig(
        application_id="x", bootstrap_servers="x:1", processing_exception_handler="continue"
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.create_input_topic("in", **TEXT).pipe_key_values(
            [("a", "ok"), ("a", "bad"), ("a", "ok")]
        )
        assert len(driver.create_output_topic("out", **TEXT).read_records()) == 2
