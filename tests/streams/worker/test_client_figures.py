"""Figures of Kafka clients, from a text like librdkafka's."""

import json
from typing import Any

from tidewheel.streams.kafka.client.statistics import ClientStatistics
from tidewheel.streams.worker.client_figures import client_families
from tidewheel.tasks.figures import Family


def window(number: int, average: int, most: int) -> dict[str, int]:
    return {"min": 0, "cnt": number, "avg": average, "max": most, "p99": most}


def broker(node: int, state: str = "UP", **fields: Any) -> dict[str, Any]:
    return {"name": f"b:{node}", "nodeid": node, "state": state, "disconnects": 1, **fields}


def families(client: str, **fields: Any) -> dict[str, Family]:
    statistics = ClientStatistics()
    statistics.added_to(client, {})["stats_cb"](json.dumps({"age": 1, **fields}))
    return {family.name: family for family in client_families([("2", statistics)])}


def test_counters_have_the_names_of_kafkas_clients() -> None:
    found = families(
        "consumer", tx=1, rx=2, tx_bytes=3, rx_bytes=4, rxmsgs=5, rxmsg_bytes=6, txmsgs=9
    )
    values = {name: family.samples.get(("2", "consumer")) for name, family in found.items()}
    assert values["consumer-request-total"] == 1
    assert values["consumer-response-total"] == 2
    assert values["consumer-outgoing-byte-total"] == 3
    assert values["consumer-incoming-byte-total"] == 4
    assert values["consumer-records-consumed-total"] == 5
    assert values["consumer-bytes-consumed-total"] == 6
    assert not found["producer-request-total"].samples


def test_a_brokers_connections_are_one_broker() -> None:
    brokers = {
        "a": broker(1, rtt=window(3, 2_000, 9_000)),
        "GroupCoordinator": broker(1, rtt=window(1, 6_000, 8_000)),
        "b": broker(2, "DOWN", rtt=window(0, 0, 0)),
        "bootstrap": broker(-1, rtt=window(5, 1, 1)),
    }
    found = families("producer", brokers=brokers, msg_size=30, msg_size_max=100, txmsgs=7)
    assert found["producer-request-latency-avg-seconds"].samples == {("2", "producer", "1"): 0.003}
    assert found["producer-request-latency-max-seconds"].samples == {("2", "producer", "1"): 0.009}
    assert found["producer-connection-count"].samples == {("2", "producer"): 3}
    assert found["producer-connection-close-total"].samples == {("2", "producer"): 4}
    assert found["producer-buffer-available-bytes"].samples == {("2", "producer"): 70}
    assert found["producer-record-send-total"].samples == {("2", "producer"): 7}


def test_an_interval_without_requests_has_no_averages() -> None:
    found = families("sink-producer", brokers={"a": broker(1, throttle=window(0, 0, 0))})
    for name in ("record-queue-time-avg-seconds", "produce-throttle-time-max-seconds"):
        assert not found[f"producer-{name}"].samples
    assert not found["producer-batch-size-avg-bytes"].samples


def test_the_lag_is_that_of_partitions_which_the_worker_reads() -> None:
    partitions = {
        "0": {"partition": 0, "fetch_state": "active", "consumer_lag": 4},
        "1": {"partition": 1, "fetch_state": "stopped", "consumer_lag": 90},
        "2": {"partition": 2, "fetch_state": "active", "consumer_lag": -1},
        "-1": {"partition": -1, "fetch_state": "none", "consumer_lag": -1},
    }
    found = families("consumer", topics={"in": {"topic": "in", "partitions": partitions}})
    assert found["consumer-records-lag"].samples == {("2", "consumer", "in", "0"): 4}
    assert found["consumer-records-lag-max"].samples == {("2", "consumer"): 4}


def test_unreadable_statistics_leave_the_other_figures() -> None:
    broken, good = ClientStatistics(), ClientStatistics()
    broken.added_to("consumer", {})["stats_cb"]("{")
    good.added_to("consumer", {})["stats_cb"]('{"tx":8}')
    found = {
        family.name: family.samples for family in client_families([("0", broken), ("1", good)])
    }
    assert found["consumer-request-total"] == {("1", "consumer"): 8}
    assert found["client-statistics-errors-total"] == {(): 1}
