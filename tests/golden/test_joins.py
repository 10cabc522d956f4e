"""Random joins as Kafka Streams 4.3.1 ran them (`joins.json`).

Run record by record on its TopologyTestDriver, without throttling and caches. `inputs` are [topic,
key, value, timestamp], `expected` [input index, key, value, timestamp]. Facts only: never edit
them.
"""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tidewheel import (
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
)
from tidewheel.testing import TopologyTestDriver

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "joins.json").read_text(encoding="utf-8")
)
IDS = [f"{number}-{case['kind']}" for number, case in enumerate(CASES)]
STRING = Serdes.string()
TEXT: dict[str, Any] = {"key_serde": STRING, "value_serde": STRING}


def joined(left: str | None, right: str | None) -> str:
    """l+'-'+r as Java prints it."""
    return f"{'null' if left is None else left}-{'null' if right is None else right}"


def results(builder: StreamsBuilder, case: dict[str, Any]) -> KStream[Any, str]:
    def stream(topic: str, rekeyed: bool) -> KStream[Any, Any]:
        read = builder.stream(topic, **TEXT)
        return read.map(lambda key, value: (key, value)) if rekeyed else read

    left = stream("left", case.get("rekey_left", False))
    kind = case["kind"]
    if kind in {"tinner", "tleft"}:
        history = case["history"]
        store = Materialized(
            store_type="rocksdb" if history is None else "versioned", history_retention=history
        )
        table: KTable[Any, Any] = builder.table("right", **TEXT, store=store)
        with_table: Any = left.join if kind == "tinner" else left.left_join
        found: KStream[Any, str] = with_table(table, joined, grace=case["grace"], **TEXT)
        return found
    other = (
        left if kind in {"self", "selfleft"} else stream("right", case.get("rekey_right", False))
    )
    method: Any = {
        "left": left.left_join,
        "selfleft": left.left_join,
        "outer": left.outer_join,
    }.get(kind, left.join)
    within = JoinWindows(before=case["before"], after=case["after"], grace=case["grace"])
    result: KStream[Any, str] = method(
        other, joined, within=within, **TEXT, other_value_serde=STRING
    )
    return result


def driver_of(case: dict[str, Any], *, record_by_record: bool = False) -> TopologyTestDriver:
    builder = StreamsBuilder()
    results(builder, case).to("output", **TEXT)
    config = StreamsConfig(
        application_id="golden",
        bootstrap_servers="unused:9092",
        statestore_cache_max_bytes=0,
        topology_optimization="all" if case.get("optimize") else "none",
    )
    return TopologyTestDriver(builder.build(config), config, record_by_record=record_by_record)


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("record_by_record", [False, True])
def test_record_by_record(case: dict[str, Any], record_by_record: bool) -> None:
    seen: list[list[Any]] = []
    with driver_of(case, record_by_record=record_by_record) as driver:
        topics = {
            topic: driver.create_input_topic(topic, **TEXT)
            for topic in {row[0] for row in case["inputs"]}
        }
        output = driver.create_output_topic("output", **TEXT)
        for index, (topic, key, value, timestamp) in enumerate(case["inputs"]):
            topics[topic].pipe_input(key, value, timestamp)
            seen += [[index, out.key, out.value, out.timestamp] for out in output.read_records()]
    assert seen == case["expected"]


@pytest.mark.parametrize(
    "case",
    # A repartition topic splits a batch, which changes the order.
    [case for case in CASES if not case.get("rekey_left") and not case.get("rekey_right")],
)
def test_in_batches(case: dict[str, Any]) -> None:
    seen: list[list[Any]] = []
    with driver_of(case) as driver:
        output = driver.create_output_topic("output", **TEXT)
        for topic, rows in groupby(case["inputs"], key=lambda row: row[0]):
            driver.create_input_topic(topic, **TEXT).pipe_batch([tuple(row[1:]) for row in rows])
            seen += [[out.key, out.value, out.timestamp] for out in output.read_records()]
    assert seen == [row[1:] for row in case["expected"]]
