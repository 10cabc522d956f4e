"""`tidewheel bootstrap` from files, with the example's program."""

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.streams.cli.command_runs import ROOT
from tidewheel import KafkaStreams
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.processes.user_program import load_program

EXAMPLE = f"{ROOT / 'examples' / 'bootstrap_product_table.py'}:topology"
TOPICS = ("product-orders", "product-changes", "priced-orders")
PRODUCTS = "id,name,price\np1,tea,3.5\np2,coffee,4.25\np1,green tea,3.75\n"


@pytest.fixture
def topics(topics_of_the_demo: None, cluster: Cluster) -> Iterator[None]:
    cluster.create(dict.fromkeys(TOPICS, 2))
    yield
    prefix = "bootstrap-product-table-"
    own = [topic for topic in cluster.admin.list_topics() if topic.startswith(prefix)]
    cluster.admin.delete_topics([*TOPICS, *own])
    cluster.admin.delete_group("bootstrap-product-table")


def test_the_example_prices_orders_with_products_from_a_file(
    topics: None,
    cluster: Cluster,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "products.csv"
    file.write_text(PRODUCTS)
    servers = ("--bootstrap-servers", cluster.bootstrap_servers, "--state-dir", str(tmp_path))
    columns = ("--select", "id AS key", "--select", "name", "--select", "price")
    command = ("bootstrap", "products", "--app", EXAMPLE, "--from", str(file), *columns, *servers)
    offsets = ("--input-offsets", "latest")
    assert main([*command, *offsets]) == ExitCode.FAILED
    assert "several rows have the same key, such as 'p1'" in capsys.readouterr().err
    assert main([*command, "--order-by", "price", *offsets, "--json"]) == ExitCode.OK
    lines = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["rows"] == 2
    # Three rows read and checked, two written.
    told = {line["step"]: (line["done"], line["total"]) for line in lines if "done" in line}
    assert told == {"reading rows": (3, 3), "checking rows": (3, 3), "writing rows": (2, 2)}
    assert main([*command, "--order-by", "price", *offsets]) == ExitCode.REFUSED
    assert "was loaded before and is complete" in capsys.readouterr().err
    cluster.send("product-changes", [(b"p2", b'{"name":"espresso","price":2}')], first_timestamp=1)
    program = load_program(EXAMPLE)
    config = program.config(
        {"bootstrap_servers": cluster.bootstrap_servers, "state_dir": str(tmp_path)}
    )
    app = KafkaStreams(program.topology(config), config)
    app.start()
    try:
        assert app.wait_until_running(PATIENCE_S), app.error
        cluster.wait_until_consumed(config.application_id, "product-changes")
        cluster.send(
            "product-orders", [(b"p1", (2).to_bytes(8, "big")), (b"p2", (3).to_bytes(8, "big"))]
        )
        wanted = {b"p1": [b"2 x green tea = 7.50"], b"p2": [b"3 x espresso = 6.00"]}
        until(lambda: cluster.values_by_key("priced-orders") == wanted, "both orders are priced")
    finally:
        assert app.close(timeout=int(PATIENCE_S * 1000))
