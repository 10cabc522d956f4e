"""Tables with expiring rows (TTL) and LRU tables, in batches and record by record."""

from typing import Any

import pytest

from tidewheel import Materialized, Serdes, StreamsBuilder, StreamsConfig, Topology
from tidewheel.testing import TopologyTestDriver

STRING = Serdes.string()


def counts(store: Materialized) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
    stream.group_by_key().count(store=store).to_stream().to("out", key_serde=STRING)
    return builder.build()


def run(
    topology: Topology,
    records: list[tuple[str, int]],
    *,
    at_once: bool,
    cache_bytes: int = 0,
    record_by_record: bool = False,
) -> tuple[list[Any], list[Any]]:
    config = StreamsConfig(
        application_id="app",
        bootstrap_servers="unused:9092",
        statestore_cache_max_bytes=cache_bytes,
    )
    with TopologyTestDriver(topology, config, record_by_record=record_by_record) as driver:
        source = driver.create_input_topic("in", key_serde=STRING, value_serde=STRING)
        sink = driver.create_output_topic("out", key_serde=STRING, value_serde=Serdes.int64())
        raws = [source._raw(key, "v", timestamp, ()) for key, timestamp in records]
        for piece in [raws] if at_once else [[raw] for raw in raws]:
            driver.pipe("in", piece)
        out = [(record.key, record.value, record.timestamp) for record in sink.read_records()]
        return out, [(key, row.value) for key, row in driver.get_state_store("store").all()]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("record_by_record", [False, True])
def test_a_row_expires_when_the_next_record_is_later_than_its_ttl(
    at_once: bool, record_by_record: bool
) -> None:
    records = [("a", 0), ("a", 9), ("b", 15), ("a", 18), ("a", 28), ("b", 28), ("c", 40)]
    out, left = run(
        counts(Materialized("store", ttl=10)),
        records,
        at_once=at_once,
        record_by_record=record_by_record,
    )
    assert out == [
        ("a", 1, 0),
        ("a", 2, 9),
        ("b", 1, 15),
        ("a", 3, 18),
        ("a", 1, 28),
        ("b", 1, 28),
        ("c", 1, 40),
    ]
    assert left == [("c", 1)]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_cache_forwards_the_last_existing_count(at_once: bool) -> None:
    records = [("a", 0), ("a", 9), ("b", 15), ("a", 25)]
    topology = counts(Materialized("store", ttl=10))
    out, left = run(topology, records, at_once=at_once, cache_bytes=1 << 20)
    assert out[-1] == ("a", 1, 25)
    assert left == [("a", 1)]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_an_lru_table_keeps_the_keys_counted_last(at_once: bool, cache_bytes: int) -> None:
    store = Materialized("store", store_type="lru", max_entries=2)
    keys = ["a", "b", "a", "c", "b", "a"]
    records = [(key, time) for time, key in enumerate(keys)]
    out, left = run(counts(store), records, at_once=at_once, cache_bytes=cache_bytes)
    assert [value for _, value, _ in out] == [1, 1, 2, 1, 1, 1]
    assert left == [("a", 1), ("b", 1)]
