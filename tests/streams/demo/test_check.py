"""The demo's own computation equals its topology, without a broker."""

from pathlib import Path
from typing import Any

import pytest

from tests.streams.demo.archive import small_archive
from tidewheel import Serdes
from tidewheel.streams.demo.check import (
    ARRIVALS,
    DELAYS,
    OUTPUT_TOPICS,
    RAIN,
    expected_results,
    wrong_results,
)
from tidewheel.streams.demo.run import result_tables, topology_target
from tidewheel.streams.demo.tables import read_rows, table, to_batches
from tidewheel.streams.processes.user_program import load_program
from tidewheel.testing import TopologyTestDriver


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return small_archive(tmp_path / "small.tar.gz")


def test_expected_results_are_computed_from_the_rows(archive: Path) -> None:
    expected = expected_results(read_rows(archive, "flights"), read_rows(archive, "weather"))
    assert expected[DELAYS] == {
        "UA": {"flights": 2, "cancelled": 0, "minutes": -2, "longest": 2, "mean": -1.0},
        "AA": {"flights": 1, "cancelled": 0, "minutes": 33, "longest": 33, "mean": 33.0},
        "EV": {"flights": 1, "cancelled": 1, "minutes": 0, "longest": 0, "mean": 0.0},
    }
    assert expected[ARRIVALS] == {"IAH": 2, "MIA": 1, "RDU": 1}
    assert expected[RAIN] == {"EWR": 1, "JFK": 2}


def test_the_topology_computes_the_same(archive: Path) -> None:
    program = load_program(topology_target())
    with TopologyTestDriver(program.topology(program.config())) as driver:
        for name in ("flights", "weather"):
            topic = driver.create_input_topic(
                name, key_serde=Serdes.bytes(), value_serde=Serdes.bytes()
            )
            for batch in to_batches(table(name), read_rows(archive, name)):
                for key, value, moment in zip(
                    batch.keys, batch.values, batch.timestamps, strict=True
                ):
                    topic.pipe_input(key, value, moment)
        serdes = {DELAYS: Serdes.json(), ARRIVALS: Serdes.int64(), RAIN: Serdes.int64()}
        found = {
            name: dict(
                driver.create_output_topic(
                    name, key_serde=Serdes.string(), value_serde=serdes[name]
                ).read_key_values()
            )
            for name in OUTPUT_TOPICS
        }
    expected = expected_results(read_rows(archive, "flights"), read_rows(archive, "weather"))
    assert wrong_results(expected, found) == []


def test_every_difference_is_found() -> None:
    expected = {"a": {"x": 1, "y": 2}, "b": {"z": 1}}
    found = {"a": {"x": 1, "y": 3}, "c": {"w": 0}}
    assert list(map(str, wrong_results(expected, found))) == [
        "a, key y: expected 2, found 3",
        "b, key z: expected 1, found None",
        "c, key w: expected None, found 0",
    ]
    assert wrong_results(expected, expected) == []


def test_printed_tables_have_names_and_are_truncated() -> None:
    found: dict[str, dict[str, Any]] = {
        DELAYS: {
            "UA": {"flights": 1, "cancelled": 0, "minutes": 2, "longest": 2, "mean": 2.0},
            "XX": {"flights": 2, "cancelled": 1, "minutes": 9, "longest": 9, "mean": 9.0},
        },
        ARRIVALS: {str(number): number for number in range(20)},
        RAIN: {},
    }
    delays, arrivals, _ = result_tables(found, airlines={"UA": "United"}, airports={"19": "Ohare"})
    assert [row[0] for row in delays.rows] == ["XX", "United"]
    assert arrivals.rows[0] == ("Ohare", "19")
    assert arrivals.more == 12
