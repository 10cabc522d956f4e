"""A foreign-key join between topics of three and two partitions, through a restart."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tidewheel import KafkaStreams, Materialized, Serdes, StreamsBuilder

STRING = Serdes.string()
SERDES: dict[str, Any] = {"key_serde": STRING, "value_serde": STRING}
RESULTS = Materialized("results", value_serde=STRING)

LEFT = {f"order{number}": f"{number}|customer{number % 7}" for number in range(60)}
RIGHT = {f"customer{number}": f"name{number}" for number in range(5)}


def expected(left: dict[str, str], right: dict[str, str]) -> dict[str, str]:
    return {key: f"{row}={right.get(row.partition('|')[2])}" for key, row in left.items()}


def encoded(rows: dict[str, str | None]) -> list[tuple[bytes, bytes | None]]:
    return [(key.encode(), None if row is None else row.encode()) for key, row in rows.items()]


def joined_rows(app: KafkaStreams) -> dict[str, str]:
    return {key: row.value for key, row in app.store("results").all()}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_rows_are_joined_across_partitions_and_restarts(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, guarantee: str
) -> None:
    left, right, out = (f"{name}-{unique}" for name in ("orders", "customers", "joined"))
    cluster.create({left: 3, right: 2, out: 3})
    builder = StreamsBuilder()
    orders = builder.table(left, **SERDES)
    joined = orders.left_join(
        builder.table(right, **SERDES),
        lambda order, customer: f"{order}={customer}",
        foreign_key=lambda order: order.partition("|")[2],
        store=RESULTS,
    )
    joined.to_stream().to(out, **SERDES)
    config["processing_guarantee"] = guarantee
    app = start_app(builder, config)
    cluster.send(left, encoded(dict(LEFT)))
    cluster.send(right, encoded(dict(RIGHT)))
    until(lambda: joined_rows(app) == expected(LEFT, RIGHT), "both tables are joined")
    prefix = f"app-{unique}-KTABLE-FK-JOIN-SUBSCRIPTION"
    assert len(cluster.partitions(f"{prefix}-REGISTRATION-0000000006-topic")) == 2
    assert len(cluster.partitions(f"{prefix}-RESPONSE-0000000014-topic")) == 3

    assert app.close(timeout=30_000)
    shutil.rmtree(Path(config["state_dir"]) / config["application_id"])
    app = start_app(builder, config)
    moved = {key: row.replace("|customer1", "|customer6") for key, row in LEFT.items()}
    del moved["order7"]
    cluster.send(left, encoded({**moved, "order7": None}))
    cluster.send(right, encoded({"customer6": "new", "customer2": None, "customer3": "renamed"}))
    now = {**RIGHT, "customer6": "new", "customer3": "renamed"}
    del now["customer2"]
    until(lambda: joined_rows(app) == expected(moved, now), "the changes of both tables are joined")
    last = {key.decode(): values[-1] for key, values in cluster.values_by_key(out).items()}
    assert {key: value.decode() for key, value in last.items() if value} == expected(moved, now)
    assert last["order7"] is None
