from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tasks.task.custom_stores import KeptTotals, Totals, counting_by
from tidewheel import (
    ChangelogRecord,
    ConfigError,
    InvalidStateStoreError,
    KafkaStreams,
    Processor,
    Record,
    StateStore,
    StateStoreError,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Topology,
    TopologyError,
)
from tidewheel.testing import TopologyTestDriver

ONE = Totals()


class Unfinished(Totals):
    @abstractmethod
    def snapshot(self) -> None: ...


def needs(size: int) -> StateStore:
    raise ValueError(size)


def fails() -> StateStore:
    raise OSError("no memory")


def settings(**changes: Any) -> StreamsConfig:
    return StreamsConfig(application_id="app", bootstrap_servers="nobody:1", **changes)


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (ONE, "of type Totals"),
        (needs, "needs arguments"),
        (fails, "failed with OSError: no memory"),
        (Unfinished, "Unfinished has no snapshot"),
        (dict, "made an object of type dict"),
        (lambda: ONE, "returned one Totals twice"),
    ],
)
def test_a_factory_without_a_store_is_refused_by_the_call(factory: Any, why: str) -> None:
    with pytest.raises(TopologyError, match=rf"(?s)test_custom_stores\.py:\d+.*{why}"):
        Stores.custom("totals", factory)


def test_settings_of_the_changelog_are_checked() -> None:
    with pytest.raises(TopologyError, match="changelog_config"):
        Stores.custom("totals", Totals, changelog_config={"retention.ms": 5})  # type: ignore[dict-item]
    spec = Stores.custom("totals", Totals, changelog_config={"retention.ms": "5"}).spec
    assert spec.changelog_config == {"retention.ms": "5"}


def test_a_custom_store_is_neither_global_nor_read_only() -> None:
    totals = Stores.custom("totals", Totals)
    with pytest.raises(TopologyError, match="'totals' is of kind custom"):
        Topology().add_global_store(totals, "read", "in", "fill", Processor)
    with pytest.raises(TopologyError, match="'totals' can't be read-only"):
        Topology().add_read_only_state_store(totals, "read", "in", "fill", Processor)


@pytest.mark.parametrize("threads", [{"num_stream_threads": 2}, {"parallelising_factor": 4}])
def test_threads_of_key_ranges_are_refused(threads: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"'totals' is a custom one.*num_stream_threads=1"):
        KafkaStreams(counting_by(Totals), settings(**threads))
    KafkaStreams(counting_by(Totals), settings(parallelising_factor=4, num_stream_threads=1))


def test_a_task_with_a_custom_store_has_no_key_ranges() -> None:
    class Keyed(Processor[str, str, None, None]):
        keyed = True

        def process(self, record: Record[str, str]) -> None: ...

    builder = StreamsBuilder().add_state_store(Stores.custom("totals", Totals))
    builder.stream("in", key_serde=str, value_serde=str).process(Keyed, stores=["totals"])
    assert "store totals is a custom one" in str(builder.build().describe(execution=True))


def test_a_custom_store_can_not_be_queried() -> None:
    app = KafkaStreams(counting_by(Totals), settings())
    with pytest.raises(InvalidStateStoreError, match=r"totals is a custom one.*forward"):
        app.store("totals")


def test_the_driver_returns_the_custom_store_itself(tmp_path: Any) -> None:
    with TopologyTestDriver(counting_by(KeptTotals), settings(), state_dir=tmp_path) as driver:
        store = driver.get_state_store("totals")
        assert type(store) is KeptTotals
        assert driver.get_all_state_stores() == {"totals": store}
        assert (store.context.store_name, store.context.task_id) == ("totals", "0_0")
        assert store.context.state_dir == tmp_path / "app" / "0_0" / "custom-totals" / "data"
        store.add("a")
        counted = driver.create_input_topic("in", key_serde=str, value_serde=str)
        counted.pipe_input("a", "x")
        results = driver.create_output_topic("out", key_serde=str, value_serde=int)
        assert results.read_key_values() == [("a", 2)]
        assert store.committed_offset("app-totals-changelog", 0) is None
    assert store.closed == 1
    with pytest.raises(StateStoreError, match="outside of processing"):
        store.add("a")


@pytest.mark.parametrize(("key", "value"), [("a", b""), (b"a", 1), (None, None)])
def test_only_bytes_are_logged(key: Any, value: Any) -> None:
    class Careless(Totals):
        def add(self, _: str) -> int:
            self.context.log_change(key, value)
            return 0

    with TopologyTestDriver(counting_by(Careless)) as driver:
        store = driver.get_state_store("totals")
        with pytest.raises(TypeError, match=r"store totals.*serialise"):
            store.add("a")


@pytest.mark.parametrize("timestamp", ["now", -1, 1.5, True])
def test_only_whole_milliseconds_are_logged(timestamp: Any) -> None:
    class Careless(Totals):
        def add(self, _: str) -> int:
            self.context.log_change(b"a", b"", timestamp)
            return 0

    with TopologyTestDriver(counting_by(Careless)) as driver:
        store = driver.get_state_store("totals")
        with pytest.raises(TypeError, match=r"store totals.*whole ms"):
            store.add("a")


def test_a_class_needs_only_to_restore() -> None:
    class Least(StateStore):
        def restore(self, records: Sequence[ChangelogRecord]) -> None:
            raise AssertionError("the driver restores nothing")

    least = Least()
    least.commit({})
    least.close()
    assert least.committed_offset("t", 0) is None
    with TopologyTestDriver(counting_by(lambda: Totals())):  # noqa: PLW0108 - a function, not the class
        pass
