"""The built wheel in a folder whose modules share the names of our four folders."""

import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.streams.cli.command_runs import ROOT

#: The user's own modules: files and a folder.
OWN = {
    "tasks.py": "NAME = 'own tasks'\n",
    "streams.py": "NAME = 'own streams'\n",
    "state_stores.py": "NAME = 'own state stores'\n",
    "rebalance/__init__.py": "NAME = 'own rebalance'\n",
}
PROGRAM = """
from dataclasses import dataclass

import rebalance, state_stores, streams, tasks
from tidewheel import Serdes, StreamsBuilder

NAMES = [module.NAME for module in (tasks, streams, state_stores, rebalance)]
assert NAMES == ["own tasks", "own streams", "own state stores", "own rebalance"], NAMES


@dataclass
class Product:
    name: str


def topology() -> StreamsBuilder:
    builder = StreamsBuilder()
    products = (
        builder.stream("{changes}", key_serde=str, value_serde=Serdes.json(Product))
        .group_by_key()
        .reduce(lambda _, product: product, store="products")
    )
    (
        builder.stream("{orders}", key_serde=str, value_serde=str)
        .join(products, lambda order, product: f"{{order}} of {{product.name}}, {{tasks.NAME}}")
        .to("{priced}", key_serde=str, value_serde=str)
    )
    return builder
"""
TEST = """
import shop, tasks
from tidewheel import Serdes


def test_orders_meet_products(topology_driver):
    driver = topology_driver(shop.topology().build())
    driver.create_input_topic(
        "{changes}", key_serde=str, value_serde=Serdes.json(shop.Product)
    ).pipe_key_values([("p1", shop.Product("tea"))])
    driver.create_input_topic("{orders}", key_serde=str, value_serde=str).pipe_key_values(
        [("p1", "2")]
    )
    priced = driver.create_output_topic("{priced}", key_serde=str, value_serde=str)
    assert priced.read_key_values() == [("p1", "2 of tea, " + tasks.NAME)]


def test_the_broker_fixture_runs(kafka_broker):
    assert kafka_broker.bootstrap_servers
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("wheel")
    # The wheel is built from the sdist, as an installer would.
    _build("sdist", ROOT, built)
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(built, filter="data")
    _build("wheel", built / sdist.name.removesuffix(".tar.gz"), built)
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(built / "site")  # noqa: S202 - built here
    return built / "site"


def _build(target: str, source: Path, to: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(to)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


@pytest.fixture
def folder(installed: Path, tmp_path: Path, unique: str) -> Path:
    topics = {name: f"{name}-{unique}" for name in ("changes", "orders", "priced")}
    files = OWN | {"shop.py": PROGRAM.format(**topics), "test_shop.py": TEST.format(**topics)}
    for name, text in files.items():
        path = tmp_path / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "own"


@pytest.fixture
def environment(installed: Path, cluster: Cluster) -> dict[str, str]:
    """The wheel comes before the editable install of this repository."""
    return os.environ | {
        "PYTHONPATH": str(installed),
        "TIDEWHEEL_TEST_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
    }


@pytest.fixture
def run(folder: Path, environment: dict[str, str]) -> Run:
    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
            timeout=4 * PATIENCE_S,
        )  # fmt: skip

    return run


def test_the_wheel_puts_one_name_into_site_packages(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"tidewheel"}
    assert not [path for path in installed.rglob("*") if path.is_symlink()]
    assert (installed / "tidewheel" / "py.typed").is_file()
    assert (installed / "tidewheel" / "tasks" / "kafka" / "ports.py").is_file()


@pytest.mark.spark
def test_user_modules_with_the_names_of_our_folders_cause_no_conflict(
    folder: Path, environment: dict[str, str], run: Run, cluster: Cluster, unique: str
) -> None:
    topics = [f"{name}-{unique}" for name in ("changes", "orders", "priced")]
    cluster.create(dict.fromkeys(topics, 2))
    _, orders, priced = topics

    tested = run("pytest", "-q", "-p", "no:cacheprovider", "test_shop.py")
    assert tested.returncode == 0, tested.stdout + tested.stderr

    settings = (
        "--application-id", f"shop-{unique}", "--bootstrap-servers", cluster.bootstrap_servers,
        "--state-dir", str(folder / "state"),
    )  # fmt: skip
    (folder / "products.csv").write_text("id,name\np1,tea\np2,coffee\n")
    loaded = run(
        "tidewheel", "bootstrap", "products", "--app", "shop.py:topology", "--from", "products.csv",
        "--select", "id AS key", "--select", "name", "--input-offsets", "latest", *settings,
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr

    with _running(["run", "shop.py:topology", *settings], folder, environment):
        cluster.send(orders, [(b"p1", b"2"), (b"p2", b"3")])
        wanted = {b"p1": [b"2 of tea, own tasks"], b"p2": [b"3 of coffee, own tasks"]}
        until(lambda: cluster.values_by_key(priced) == wanted, "both orders are priced")


@contextmanager
def _running(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    log = folder / "run.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidewheel", *command],
            cwd=folder, env=environment, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()[-4000:]
    finally:
        process.kill()
        process.wait()
