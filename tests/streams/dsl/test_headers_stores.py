"""Tables whose rows keep record headers: `dsl_store_format` and `Materialized(headers=)`."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.streams.definitions.test_store_suppliers import every_store
from tidewheel import (
    AggregationWithHeaders,
    ConfigError,
    JoinWindows,
    Materialized,
    Processor,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
    TimeWindows,
    Topology,
    TopologyError,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
)
from tidewheel.streams.bulk.bootstrap.plan import target_of
from tidewheel.streams.bulk.stores import BulkStore, check_no_headers
from tidewheel.tasks.kafka.internal_topics import plan_application
from tidewheel.testing import TopologyTestDriver

Headers = tuple[tuple[str, bytes | None], ...]
FIRST: Headers = (("trace", b"1"), ("trace", None))
SECOND: Headers = (("trace", b"2"),)

#: (key, value, timestamp, headers)
INPUTS: list[tuple[str, str | None, int, Headers]] = [
    ("a", "1", 1, FIRST),
    ("b", "2", 2, ()),
    ("a", "3", 4, SECOND),
    ("b", "4", 25, FIRST),
    ("a", None, 30, SECOND),
    ("a", "5", 3, ()),
    ("b", "6", 60, ()),
    ("c", "7", 70, SECOND),
    ("b", None, 71, FIRST),
]


def config(**options: Any) -> StreamsConfig:
    return StreamsConfig(application_id="shop", bootstrap_servers="unused:9092", **options)


def kept_by(topology: Topology, **options: Any) -> set[str]:
    spec = topology.spec(config(**options))
    stores = [store for sub in spec.subtopologies for store in sub.stores]
    stores += [each.store for each in spec.global_stores]
    return {store.name for store in stores if store.keeps_headers}


@pytest.mark.parametrize("when", ["build", "run"])
def test_the_setting_is_for_tables_by_key_window_and_session(when: str) -> None:
    chosen = config(dsl_store_format="headers")
    topology = every_store().build(chosen if when == "build" else None)
    assert kept_by(topology, dsl_store_format="DEFAULT" if when == "build" else "HEADERS") == {
        "table", "windows", "sessions", "users", "cities", "homes",
    }  # fmt: skip
    assert kept_by(every_store().build()) == set()


def test_materialized_overrides_the_setting() -> None:
    for headers, setting in ((True, "DEFAULT"), (False, "HEADERS")):
        topology = every_store(Materialized("table", headers=headers)).build()
        assert ("table" in kept_by(topology, dsl_store_format=setting)) is headers
    for wish in (
        Materialized("table", ttl=5),
        Materialized("table", store_type="lru", max_entries=3),
        Materialized("table", store_type="versioned", history_retention=5),
    ):
        assert "table" not in kept_by(every_store(wish).build(), dsl_store_format="HEADERS")


@pytest.mark.parametrize(
    "wishes",
    [
        {"ttl": 5},
        {"store_type": "lru", "max_entries": 3},
        {"store_type": "versioned", "history_retention": 5},
    ],
)
def test_headers_are_refused_for_stores_that_cannot_keep_them(wishes: Any) -> None:
    with pytest.raises(TopologyError, match=r"headers=True is for plain tables.*leave it out"):
        Materialized("table", headers=True, **wishes)


def test_headers_must_be_a_bool() -> None:
    headers: Any = "no"
    with pytest.raises(TopologyError, match="headers='no'; give True or False"):
        Materialized("table", headers=headers)


def test_headers_are_refused_for_joins_and_global_stores() -> None:
    rates = Materialized("rates", headers=True)
    builder = StreamsBuilder()
    builder.global_table("rates", key_serde=str, value_serde=str, store=rates)
    with pytest.raises(TopologyError, match=r"'rates' keeps headers.*leave headers= out"):
        builder.build()
    left, right = (builder.stream(topic, key_serde=str, value_serde=str) for topic in "ab")
    with pytest.raises(TopologyError, match=r"keeps no headers; leave headers= out"):
        left.join(right, lambda one, _two: one, within=JoinWindows(5), store=rates)
    with pytest.raises(TopologyError, match=r"'own' keeps headers.*timestamped_key_value\(\)"):
        Topology().add_global_store(
            Stores.timestamped_key_value_with_headers("own", key_serde=str, value_serde=str),
            "read", "rates", "keep", Processor,
        )  # fmt: skip


@pytest.mark.parametrize("bad", ["HEADER", 5, None])
def test_a_bad_setting_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="DEFAULT"):
        config(dsl_store_format=bad)


def counted(builder: StreamsBuilder) -> Any:
    return builder.stream("in", key_serde=str, value_serde=str).group_by_key()


def folded(_key: str, value: str | None, total: str) -> str:
    return f"{total}{value}"


def joined(builder: StreamsBuilder) -> Any:
    table = builder.table("in", key_serde=str, value_serde=str)
    odd = table.filter(lambda value: value in "1357")
    store = Materialized("rows", value_serde=str)
    return table.left_join(odd, lambda left, right: f"{left}/{right}", store=store)


TABLES: dict[str, Callable[[StreamsBuilder], Any]] = {
    "source": lambda builder: builder.table("in", key_serde=str, value_serde=str, store="rows"),
    "mapped": lambda builder: builder.table("in", key_serde=str, value_serde=str).map_values(
        str, store=Materialized("rows", value_serde=str)
    ),
    "joined": joined,
    "count": lambda builder: counted(builder).count(store="rows"),
    "reduce": lambda builder: counted(builder).reduce(lambda one, two: one + two, store="rows"),
    "regrouped": lambda builder: (
        builder.table("in", key_serde=str, value_serde=str)
        .group_by(lambda key, value: (value, key), key_serde=str, value_serde=str)
        .count(store="rows")
    ),
    "windows": lambda builder: counted(builder).windowed_by(TimeWindows(10)).count(store="rows"),
    "hopping": lambda builder: (
        counted(builder)
        .windowed_by(TimeWindows(10, advance=5, grace=20))
        .aggregate(str, folded, store=Materialized("rows", value_serde=str))
    ),
    "sliding": lambda builder: (
        counted(builder).windowed_by(SlidingWindows(10, grace=30)).count(store="rows")
    ),
    "sessions": lambda builder: (
        counted(builder).windowed_by(SessionWindows(10, grace=30)).count(store="rows")
    ),
    "closed": lambda builder: (
        counted(builder)
        .windowed_by(TimeWindows(10))
        .emit_strategy("on_window_close")
        .count(store="rows")
    ),
}


def lived(name: str, *, record_by_record: bool = False, **options: Any) -> tuple[Any, Any]:
    builder = StreamsBuilder()
    seen: list[Any] = []
    TABLES[name](builder).to_stream().process(lambda: Noting(seen))
    settings = {"emit_interval_ms": 0, **options}
    with TopologyTestDriver(
        builder.build(), config(**settings), record_by_record=record_by_record
    ) as driver:
        topic = driver.create_input_topic("in", key_serde=str, value_serde=str)
        for record in INPUTS:
            topic.pipe_input(*record)
        store: Any = driver.get_state_store("rows")
        rows = store.fetch_range(None, None) if name == "sessions" else store.all()
        return seen, list(rows)


class Noting(Processor[Any, Any, Any, Any]):
    def __init__(self, seen: list[Any]) -> None:
        self._seen = seen

    def process(self, record: Any) -> None:
        self._seen.append((record.key, record.value, record.timestamp, record.headers))


def plain(row: Any) -> Any:
    key, value = row
    if isinstance(value, AggregationWithHeaders):
        return key, value.aggregation
    return key, ValueAndTimestamp(value.value, value.timestamp)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_with_headers_forwards_the_same_changes(name: str, cache_bytes: int) -> None:
    shared: Any = {"statestore_cache_max_bytes": cache_bytes}
    changes, rows = lived(name, **shared)
    with_headers = lived(name, dsl_store_format="HEADERS", **shared)
    assert with_headers[0] == changes
    assert list(map(plain, with_headers[1])) == rows
    assert with_headers == lived(
        name, dsl_store_format="HEADERS", dsl_store_suppliers="in_memory", **shared
    )
    assert with_headers == lived(name, dsl_store_format="HEADERS", record_by_record=True, **shared)
    assert any(value.headers for _, value in with_headers[1])
    if name != "closed":
        latest = {key: headers for key, _, _, headers in changes}
        assert all(value.headers == latest[key] for key, value in with_headers[1])


class Keeps(Processor[str, str, str, str]):
    def process(self, record: Any) -> None:
        store: Any = self.context.get_state_store("last")
        before = store.get(record.key)
        store.put(
            record.key,
            None
            if record.value is None
            else ValueTimestampHeaders(record.value, record.timestamp, record.headers),
        )
        if before is not None:
            self.context.forward(record.replace(value=before.value, headers=before.headers))


@pytest.mark.parametrize("persistent", [True, False])
def test_a_processor_puts_and_gets_headers(persistent: bool) -> None:
    topology = (
        Topology()
        .add_source("read", "in", key_serde=str, value_serde=str)
        .add_processor("keep", Keeps, "read")
        .add_sink("write", "out", "keep", key_serde=str, value_serde=str)
        .add_state_store(
            Stores.timestamped_key_value_with_headers(
                "last", key_serde=str, value_serde=str, persistent=persistent
            ),
            "keep",
        )
    )
    with TopologyTestDriver(topology, config()) as driver:
        topic = driver.create_input_topic("in", key_serde=str, value_serde=str)
        for record in INPUTS[:5]:
            topic.pipe_input(*record)
        out = driver.create_output_topic("out", key_serde=str, value_serde=str).read_records()
        assert [(each.key, each.value, each.headers) for each in out] == [
            ("a", "1", FIRST),
            ("b", "2", ()),
            ("a", "3", SECOND),
        ]
        store: Any = driver.get_state_store("last")
        assert list(store.all()) == [("b", ValueTimestampHeaders("4", 25, FIRST))]


def test_a_processor_of_the_user_reads_the_headers_of_a_window() -> None:
    windows = Stores.timestamped_window_with_headers(
        "windows", retention=100, window_size=10, key_serde=str, value_serde=int
    )
    sessions = Stores.session_with_headers(
        "sessions", retention=100, key_serde=str, value_serde=int
    )
    topology = Topology().add_source("read", "in", key_serde=str, value_serde=str)
    topology.add_processor("keep", Processor, "read")
    topology.add_state_store(windows, "keep").add_state_store(sessions, "keep")
    with TopologyTestDriver(topology, config()) as driver:
        window: Any = driver.get_state_store("windows")
        window.put("a", ValueTimestampHeaders(1, 5, FIRST), 0)
        assert list(window.fetch("a", 0, 10)) == [(0, ValueTimestampHeaders(1, 5, FIRST))]
        session: Any = driver.get_state_store("sessions")
        session.put(Windowed("a", 1, 5), AggregationWithHeaders(1, SECOND))
        assert session.fetch_session("a", 1, 5) == AggregationWithHeaders(1, SECOND)


def test_bulk_jobs_refuse_stores_with_headers() -> None:
    builder = StreamsBuilder()
    counted(builder).count(store=Materialized("rows", headers=True))
    plan = plan_application(builder.build().spec(config()), "shop", {"in": 1})
    ((spec,),) = (each.spec.stores for each in plan.subtopologies.values())
    store = BulkStore(spec=spec, topic="shop-rows-changelog", subtopology=0, partitions=1)
    with pytest.raises(
        StreamsError, match=r"store rows keeps headers.*a snapshot.*naming the other"
    ):
        check_no_headers([store], "a snapshot")
    with pytest.raises(
        StreamsError, match=r"store rows keeps headers.*dsl_store_format to DEFAULT"
    ):
        target_of(plan, "shop", "rows")
