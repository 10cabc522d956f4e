from typing import Any

import pytest

from tidewheel import (
    ConfigError,
    DslStoreSuppliers,
    JoinWindows,
    Materialized,
    Processor,
    SessionWindows,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    TopologyError,
)
from tidewheel.streams.definitions.store_suppliers import DslStoreType
from tidewheel.tasks.processing.api.topology_spec import TopologySpec
from tidewheel.testing import TopologyTestDriver


class WindowsInMemory(DslStoreSuppliers):
    def window_store(self, name: str) -> DslStoreType:
        assert name
        return "in_memory"


class Undecided(DslStoreSuppliers):
    def session_store(self, name: str) -> Any:
        return f"disk of {name}"


def config(**options: Any) -> StreamsConfig:
    return StreamsConfig(application_id="shop", bootstrap_servers="unused:9092", **options)


def every_store(store: str | Materialized | None = None) -> StreamsBuilder:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key_serde=str, value_serde=str)
    grouped = orders.group_by_key()
    grouped.count(store=store or "table")
    grouped.windowed_by(TimeWindows(10)).count(store="windows")
    grouped.windowed_by(SessionWindows(10)).count(store="sessions")
    returns = builder.stream("returns", key_serde=str, value_serde=str)
    orders.left_join(
        returns, lambda left, _right: left, within=JoinWindows(10), store=Materialized("join")
    ).to("joined", value_serde=str)
    builder.global_table("rates", key_serde=str, value_serde=str, store="rates")
    users = builder.table("users", key_serde=str, value_serde=str, store="users")
    cities = builder.table("cities", key_serde=str, value_serde=str, store="cities")
    homes = Materialized("homes", value_serde=str)
    users.join(cities, lambda left, _right: left, foreign_key=lambda value: value, store=homes)
    builder.add_state_store(Stores.key_value("own", key_serde=str, value_serde=str))
    orders.process(Processor[str, str, str, str], stores=["own"])
    return builder


def persistent(spec: TopologySpec) -> dict[str, bool]:
    stores = [store for sub in spec.subtopologies for store in sub.stores]
    stores += [each.store for each in spec.global_stores]
    return {store.name: store.persistent for store in stores}


def test_without_the_setting_every_store_is_on_disk() -> None:
    assert all(persistent(every_store().build().spec(config())).values())


@pytest.mark.parametrize("when", ["build", "run"])
def test_in_memory_is_for_every_store_of_the_dsl_and_for_no_other(when: str) -> None:
    chosen = config(dsl_store_suppliers="in_memory")
    topology = every_store().build(chosen if when == "build" else None)
    kept = persistent(topology.spec(config() if when == "build" else chosen))
    assert len(kept) == 12, kept
    assert {name for name, on_disk in kept.items() if on_disk} == {"own"}


@pytest.mark.parametrize(
    ("setting", "store_type", "on_disk"),
    [("in_memory", "rocksdb", True), ("rocksdb", "in_memory", False), ("in_memory", "lru", False)],
)
def test_materialized_overrides_the_setting(setting: str, store_type: Any, on_disk: bool) -> None:
    limit = 5 if store_type == "lru" else None
    store = Materialized("table", store_type=store_type, max_entries=limit)
    spec = every_store(store).build().spec(config(dsl_store_suppliers=setting))
    assert persistent(spec)["table"] is on_disk


@pytest.mark.parametrize(
    "given",
    [
        WindowsInMemory,
        WindowsInMemory(),
        "tests.streams.definitions.test_store_suppliers:WindowsInMemory",
    ],
)
def test_a_supplier_class_decides_per_store(given: Any) -> None:
    """As in Kafka Streams' DslStoreSuppliers."""
    kept = persistent(every_store().build().spec(config(dsl_store_suppliers=given)))
    in_memory = {name for name, on_disk in kept.items() if not on_disk}
    assert in_memory == {"windows", "join-this-join-store", "join-outer-other-join-store"}


def test_an_unknown_kind_of_store_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"'sessions'.*Undecided.session_store.*'disk of "):
        every_store().build().spec(config(dsl_store_suppliers=Undecided))


@pytest.mark.parametrize("bad", ["disk", 5, dict, None])
def test_a_bad_setting_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="'rocksdb', 'in_memory', or a DslStoreSuppliers class"):
        config(dsl_store_suppliers=bad)


@pytest.mark.parametrize("setting", ["rocksdb", "in_memory"])
def test_results_do_not_depend_on_the_store_supplier(setting: str) -> None:
    builder = StreamsBuilder()
    words = builder.stream("words", key_serde=str, value_serde=str)
    words.group_by_key().count(store="counts").to_stream().to("counts", value_serde=int)
    with TopologyTestDriver(builder.build(), config(dsl_store_suppliers=setting)) as driver:
        feed = driver.create_input_topic("words", key_serde=str, value_serde=str)
        for key in "aba":
            feed.pipe_input(key, "x")
        out = driver.create_output_topic("counts", key_serde=str, value_serde=int)
        assert out.read_key_values() == [("a", 1), ("b", 1), ("a", 2)]
