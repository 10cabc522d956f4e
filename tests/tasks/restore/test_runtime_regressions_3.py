"""Regressions of the runtime."""

import os
from contextlib import closing
from itertools import pairwise
from typing import Any

from tests.tasks.loop.bench import Bench
from tidewheel import Processor, Record, Serdes, StreamsBuilder, StreamsConfig, Topology
from tidewheel.streams.cli.worker_main import SupervisorLink
from tidewheel.streams.processes.supervisor.worker_messages import StartWorker, StopWorker, encode
from tidewheel.testing import TopologyTestDriver

STRING = Serdes.string()
TEXT: dict[str, Any] = {"key_serde": STRING, "value_serde": STRING}


def test_a_stop_sent_with_the_start_is_received() -> None:
    orders, to_worker = os.pipe()
    _, reports = os.pipe()
    os.write(to_worker, encode(StartWorker(target="x:y")) + encode(StopWorker(timeout_ms=1)))
    with closing(SupervisorLink(orders, reports)) as link:
        assert link.first_order() is not None
        assert any(isinstance(order, StopWorker) for order in link.orders(0.2)), (
            "the stop order is lost"
        )


def test_slices_are_bounded_by_time_when_user_code_becomes_slow() -> None:
    bench: Any = None
    count = {"n": 0}

    class Work(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:
            count["n"] += 1
            if count["n"] > 20_000:
                bench.clock.advance(100)  # the service it asks has become slow

    topology = Topology().add_source("s", "in", **TEXT).add_processor("p", Work, "s")
    bench = Bench(topology, {"in": 1})
    for _ in range(22_000):
        bench.send("in", "a", "v")
    polls: list[float] = []
    bench.at_poll.append(lambda worker, _s: polls.append(bench.clock.monotonic_s()))
    assert bench.live()
    longest = max(b - a for a, b in pairwise(polls))
    assert longest < 2, f"{longest:.0f} s without a look at stop, commit or input"


def test_a_forward_with_a_negative_timestamp_fails_at_the_call() -> None:
    class Stamp(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:
            self.context.forward(
                Record(record.key, record.value, -1 if record.value == "bad" else record.timestamp)
            )

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).process(Stamp).repartition(name="again", **TEXT).to("out", **TEXT)
    config = StreamsConfig(
        application_id="x",
        bootstrap_servers="x:1",
        processing_exception_handler="continue",
        deserialization_exception_handler="continue",
        production_exception_handler="continue",
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.create_input_topic("in", **TEXT).pipe_key_values(
            [("a", "ok"), ("a", "bad"), ("a", "ok")]
        )
        assert len(driver.create_output_topic("out", **TEXT).read_records()) == 2
