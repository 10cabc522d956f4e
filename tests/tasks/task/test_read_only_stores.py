"""Read-only state stores (KIP-813): a processor fills them from a topic, which also restores them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.loop.bench import APP, Bench
from tidewheel import (
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    RecordFailedError,
    Serdes,
    Stores,
    StreamsConfig,
    Topology,
    ValueAndTimestamp,
)
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.testing import TopologyTestDriver

STRING = Serdes.string()
_TEXT: dict[str, Any] = {"key_serde": STRING, "value_serde": STRING}
CONFIG = StreamsConfig(application_id=APP, bootstrap_servers="unused:9092")


class Keep(Processor[str, str, None, None]):
    """Stores values in upper case; "bad" fails. Records its calls."""

    lives: list[str]

    def init(self, context: ProcessorContext[None, None]) -> None:
        super().init(context)
        self.rates = context.get_state_store("rates")
        context.schedule(1, PunctuationType.STREAM_TIME, self.tick)
        self.lives.append("init")

    def process(self, record: Record[str, str]) -> None:
        if record.value == "bad":
            raise ValueError("not a rate")
        if record.value is None:
            self.rates.delete(record.key)
        else:
            self.rates.put(record.key, ValueAndTimestamp(record.value.upper(), record.timestamp))

    def tick(self, _now_ms: int) -> None:
        self.lives.append("tick")

    def close(self) -> None:
        self.lives.append("close")


class Price(Processor[str, str, str, str]):
    """Forwards the stored value; "put" tries to write it."""

    def process(self, record: Record[str, str]) -> None:
        rates = self.context.get_state_store("rates")
        if record.value == "put":
            rates.put(record.key, "mine")
        found = rates.get(record.key)
        answer = "none" if found is None else found.value
        self.context.forward(record.replace(value=f"{record.value} at {answer}"))


def topology_of() -> tuple[Topology, list[str]]:
    """Return a topology with store "rates" of topic "rates", and the calls of its processor."""
    lives: list[str] = []
    keep = type("Keep", (Keep,), {"lives": lives})
    topology = Topology()
    store = Stores.timestamped_key_value("rates", **_TEXT)
    topology.add_read_only_state_store(store, "read", "rates", "keep", keep, **_TEXT)
    topology.add_source("orders", "orders", **_TEXT)
    topology.add_processor("price", Price, ["orders"])
    topology.connect_processor_and_state_stores("price", ["rates"])
    topology.add_sink("out", "out", ["price"], **_TEXT)
    return topology, lives


def bench_of(**options: Any) -> tuple[Bench, list[str]]:
    topology, lives = topology_of()
    return Bench(topology, {"rates": 1, "orders": 1, "out": 1}, **options), lives


def rows(bench: Bench) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for key, stored in bench.rows("rates").items():
        value, timestamp = unwrap_value(stored)[:2]
        found[key.decode()] = (value.decode(), timestamp)
    return found


def restored(bench: Bench) -> list[tuple[str, str, int]]:
    return [(e.kind, e.topic, e.restored) for e in bench.events if e.kind != "batch"]


def test_other_processors_read_the_rows_of_the_store() -> None:
    """One sub-topology, described as in Kafka Streams; the store has no changelog."""
    topology, _ = topology_of()
    assert str(topology.describe()) == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: orders (topics: [orders])\n"
        "      --> price\n"
        "    Processor: price (stores: [rates])\n"
        "      --> out\n"
        "      <-- orders\n"
        "    Source: read (topics: [rates])\n"
        "      --> keep\n"
        "    Processor: keep (stores: [rates])\n"
        "      --> none\n"
        "      <-- read\n"
        "    Sink: out (topic: out)\n"
        "      <-- price\n\n"
    )
    (source,) = (
        source for source in topology.spec().subtopologies[0].sources if source.name == "read"
    )
    assert source.offset_reset == "earliest"
    with TopologyTestDriver(topology, CONFIG) as driver:
        driver.create_input_topic("rates", **_TEXT).pipe_input("a", "one", 5)
        driver.create_input_topic("orders", **_TEXT).pipe_input("a", "buy", 6)
        assert driver.create_output_topic("out", **_TEXT).read_value() == "buy at ONE"


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.put("a", "x"),
        lambda store: store.delete("a"),
        lambda store: store.put_all([("a", "x")]),
        lambda store: store.put_if_absent("a", "x"),
        lambda store: store.__setitem__("a", "x"),
        lambda store: store.__delitem__("a"),
        lambda store: store.pop("a"),
        lambda store: store.setdefault("a", "x"),
        lambda store: store.update({"a": "x"}),
    ],
)
def test_other_processors_cannot_write_the_store(write: Any) -> None:
    seen: list[Any] = []

    class Writes(Processor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            store = self.context.get_state_store("rates")
            seen.append((store["a"].value, "b" in store, len(store), list(store), store.get("z")))
            write(store)

    topology = Topology()
    store = Stores.timestamped_key_value("rates", **_TEXT)
    keep = type("Keep", (Keep,), {"lives": []})
    topology.add_read_only_state_store(store, "read", "rates", "keep", keep, **_TEXT)
    topology.add_source("orders", "orders", **_TEXT).add_processor("write", Writes, ["orders"])
    topology.connect_processor_and_state_stores("write", "rates")
    with TopologyTestDriver(topology, CONFIG) as driver:
        driver.create_input_topic("rates", **_TEXT).pipe_input("a", "one", 5)
        with pytest.raises(RecordFailedError, match=r"store rates is read-only for write: .*topic"):
            driver.create_input_topic("orders", **_TEXT).pipe_input("a", "buy", 6)
    assert seen == [("ONE", False, 1, ["a"], None)]


def test_a_lost_disk_is_restored_by_running_the_processor_again() -> None:
    bench, lives = bench_of()
    for number in range(4):
        bench.send("rates", f"k{number}", f"v{number}", timestamp=number)
    bench.send("rates", "k0", None, timestamp=9)
    assert bench.live()
    kept = {f"k{n}": (f"V{n}", n) for n in range(1, 4)}
    assert rows(bench) == kept
    assert "tick" in lives
    bench.disk.versions.clear()
    lives.clear()
    assert bench.live()
    assert restored(bench) == [("start", "rates", 0), ("end", "rates", 5)]
    assert rows(bench) == kept
    assert lives == ["init", "close", "init", "close"]
    assert bench.outputs("out") == []


def test_a_clean_restart_reads_no_records() -> None:
    bench, lives = bench_of()
    bench.send("rates", "a", "one", timestamp=1)
    assert bench.live()
    assert bench.live()
    assert restored(bench) == []
    assert lives.count("init") == 2


def test_a_record_that_failed_is_skipped_again() -> None:
    bench, _ = bench_of(processing_exception_handler="continue")
    bench.send("rates", "a", "one", timestamp=1)
    bench.send("rates", "b", "bad", timestamp=2)
    bench.send("rates", "c", "three", timestamp=3)
    assert bench.live()
    bench.disk.versions.clear()
    assert bench.live()
    assert rows(bench) == {"a": ("ONE", 1), "c": ("THREE", 3)}


CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.none() | st.sampled_from("xyz"), st.integers(0, 50)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25)
@given(st.lists(st.tuples(CHANGES, st.integers(0, 40), st.integers(0, 4)), min_size=1, max_size=3))
def test_the_rows_are_those_of_the_topic(
    lives: list[tuple[list[tuple[str, str | None, int]], int, int]],
) -> None:
    bench, _ = bench_of()
    expected: dict[str, tuple[str, int]] = {}
    for changes, crash_after, lost in lives:
        for key, value, timestamp in changes:
            bench.send("rates", key, value, timestamp=timestamp)
            expected.pop(key, None)
            if value is not None:
                expected[key] = (value.upper(), timestamp)
        bench.live(crash_after=crash_after)
        bench.disk.lose(lost)
    assert bench.live()
    assert rows(bench) == expected
