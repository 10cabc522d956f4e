"""Stored rows that a changed class can't read."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidewheel import (
    AggregationWithHeaders,
    Materialized,
    Processor,
    Record,
    Serde,
    Serdes,
    SerializationError,
    SessionWindows,
    StoredRowError,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
)
from tidewheel.state_stores.layout.stored_values import key_hash
from tidewheel.streams.exit_codes import ExitCode, exit_code_of
from tidewheel.testing import TopologyTestDriver


@dataclass
class Order:
    cents: int


@dataclass
class NewOrder:
    cents: int
    currency: str


class Changing(Serde[Any]):
    """Writes orders and reads them; after the class change, reading fails."""

    name = "changing"

    def __init__(self) -> None:
        super().__init__()
        self.has_changed = False

    def serialize(self, topic: str, value: Any, /) -> bytes | None:
        return Serdes.json(Order).serialize(topic, value)

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        if self.has_changed:
            return Serdes.json(NewOrder).deserialize(topic, data)
        return Serdes.json(Order).deserialize(topic, data)


def add(order: Order, total: Order) -> Order:
    return Order(order.cents + total.cents)


class Summing(Processor[str, Order, None, None]):
    def process(self, record: Record[str, Order]) -> None:
        store = self.context.get_state_store("rows")
        store.put(record.key, add(record.value, store.get(record.key) or Order(0)))


def aggregated(builder: StreamsBuilder, serde: Serde[Any]) -> None:
    stream = builder.stream("in", key_serde=str, value_serde=Serdes.json(Order))
    stream.group_by_key(value_serde=serde).reduce(add, store="rows")


def windowed(windows: Any) -> Callable[[StreamsBuilder, Serde[Any]], None]:
    def build(builder: StreamsBuilder, serde: Serde[Any]) -> None:
        stream = builder.stream("in", key_serde=str, value_serde=Serdes.json(Order))
        stream.group_by_key(value_serde=serde).windowed_by(windows).reduce(add, store="rows")

    return build


def table(builder: StreamsBuilder, serde: Serde[Any]) -> None:
    rows = builder.table("rows", key_serde=str, value_serde=serde, store="rows")
    stream = builder.stream("in", key_serde=str, value_serde=Serdes.json(Order))
    stream.join(rows, add).to("out", key_serde=str, value_serde=Serdes.json(Order))


def processor(builder: StreamsBuilder, serde: Serde[Any]) -> None:
    builder.add_state_store(Stores.key_value("rows", key_serde=str, value_serde=serde))
    stream = builder.stream("in", key_serde=str, value_serde=Serdes.json(Order))
    stream.process(Summing, stores=["rows"])


@pytest.mark.parametrize("handler", ["continue", "fail"])
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(aggregated, id="aggregate"),
        pytest.param(windowed(TimeWindows(timedelta(hours=1))), id="time windows"),
        pytest.param(windowed(SessionWindows(timedelta(hours=1))), id="sessions"),
        pytest.param(processor, id="processor"),
        pytest.param(table, id="table"),
    ],
)
def test_a_row_of_an_older_class_ends_the_worker(build: Any, handler: Any) -> None:
    serde = Changing()
    builder = StreamsBuilder()
    build(builder, serde)
    config = StreamsConfig(
        application_id="rows",
        bootstrap_servers="unused:9092",
        processing_exception_handler=handler,
        deserialization_exception_handler=handler,
        production_exception_handler=handler,
        statestore_cache_max_bytes=0,
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        given = driver.create_input_topic("in", key_serde=str, value_serde=Serdes.json(Order))
        if build is table:
            rows = driver.create_input_topic("rows", key_serde=str, value_serde=Serdes.json(Order))
            rows.pipe_input("canary", Order(7), 1_000)
        given.pipe_input("canary", Order(7), 1_000)
        serde.has_changed = True

        with pytest.raises(StoredRowError, match=r"store rows: .*`currency`") as caught:
            given.pipe_input("canary", Order(5), 2_000)

        assert caught.value.store == "rows"
        assert "canary" not in str(caught.value)
        assert "sha256:" in str(caught.value)
        serde.has_changed = False


class ChangingKey(Serde[str]):
    name = "changing key"

    def __init__(self) -> None:
        super().__init__()
        self.has_changed = False

    def serialize(self, topic: str, value: str, /) -> bytes:
        return value.encode()

    def deserialize(self, topic: str, data: bytes, /) -> str:
        if self.has_changed:
            raise KeyError("currency")
        return data.decode()


KINDS: dict[str, Any] = {
    "key-value": Stores.key_value,
    "timestamped": Stores.timestamped_key_value,
    "headers": Stores.timestamped_key_value_with_headers,
    "versioned": partial(Stores.versioned, history_retention=1_000),
    "window": partial(Stores.window, retention=1_000, window_size=10),
    "timestamped window": partial(Stores.timestamped_window, retention=1_000, window_size=10),
    "window headers": partial(
        Stores.timestamped_window_with_headers, retention=1_000, window_size=10
    ),
    "session": partial(Stores.session, retention=1_000),
    "session headers": partial(Stores.session_with_headers, retention=1_000),
}


def put(store: Any, kind: str, record: Record[str, Order]) -> None:
    value: Any = record.value
    if "session" in kind:
        value = AggregationWithHeaders(value, ()) if "headers" in kind else value
        store.put(Windowed(record.key, 0, record.timestamp), value)
        return
    if "headers" in kind:
        value = ValueTimestampHeaders(value, record.timestamp, ())
    elif "timestamped" in kind:
        value = ValueAndTimestamp(value, record.timestamp)
    in_time = "window" in kind or kind == "versioned"
    store.put(record.key, value, *([record.timestamp] if in_time else []))


def read(store: Any, kind: str) -> Any:
    if kind == "versioned":
        return store.get("ann")
    return list(store.find_sessions("ann", 0, 100) if "session" in kind else store.all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changing", ["key", "value"])
def test_every_kind_of_store_names_the_key(kind: str, changing: str) -> None:
    key_serde, value_serde = ChangingKey(), Changing()

    class Keeping(Processor[str, Order, None, None]):
        def process(self, record: Record[str, Order]) -> None:
            put(self.context.get_state_store("rows"), kind, record)

    builder = StreamsBuilder()
    made = KINDS[kind]("rows", key_serde=key_serde, value_serde=value_serde)
    builder.add_state_store(made)
    stream = builder.stream("in", key_serde=str, value_serde=Serdes.json(Order))
    stream.process(Keeping, stores=["rows"])
    config = StreamsConfig(
        application_id="rows", bootstrap_servers="unused:9092", statestore_cache_max_bytes=0
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        given = driver.create_input_topic("in", key_serde=str, value_serde=Serdes.json(Order))
        given.pipe_input("ann", Order(7), 5)
        (key_serde if changing == "key" else value_serde).has_changed = True
        if changing == "key" and kind == "versioned":
            return  # its keys are never read
        with pytest.raises(StoredRowError) as caught:
            read(driver.get_state_store("rows"), kind)
        assert caught.value.key_hash == key_hash(b"ann")
        key_serde.has_changed = value_serde.has_changed = False


def test_the_keys_hash_is_that_of_its_bytes() -> None:
    serde = Changing()
    builder = StreamsBuilder()
    aggregated(builder, serde)
    config = StreamsConfig(
        application_id="rows", bootstrap_servers="unused:9092", statestore_cache_max_bytes=0
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        given = driver.create_input_topic("in", key_serde=str, value_serde=Serdes.json(Order))
        given.pipe_input("ann", Order(7))
        serde.has_changed = True
        with pytest.raises(StoredRowError) as caught:
            driver.get_state_store("rows").get("ann")
        assert caught.value.key_hash == key_hash(b"ann")
        with pytest.raises(StoredRowError) as caught:
            list(driver.get_state_store("rows").all())
        assert caught.value.key_hash == key_hash(b"ann")
        serde.has_changed = False


def test_an_unreadable_row_has_its_own_exit_code() -> None:
    code = exit_code_of(StoredRowError("rows", "missing field"))

    assert code is ExitCode.STORED_ROW
    assert code.is_final


def test_a_bad_record_is_still_a_record_error() -> None:
    with pytest.raises(SerializationError):
        Serdes.json(NewOrder).deserialize("in", b'{"cents": 1}')


class Place(msgspec.Struct):
    parts: dict[str, int]


def given_order(serde: Serde[Any]) -> Serde[Any]:
    return Serde(serde.serialize, serde.deserialize, name="before")


UNSORTED, SORTED = {"b": 1, "a": 2}, {"a": 2, "b": 1}


def counted(windows: Any) -> Callable[[StreamsBuilder, Serde[Any]], None]:
    def build(builder: StreamsBuilder, serde: Serde[Any]) -> None:
        grouped = builder.stream("in", key_serde=serde, value_serde=str).group_by_key()
        (grouped if windows is None else grouped.windowed_by(windows)).count(store="rows")

    return build


def versioned_table(builder: StreamsBuilder, serde: Serde[Any]) -> None:
    store = Materialized("rows", store_type="versioned", history_retention=1000)
    builder.table("in", key_serde=serde, value_serde=str, store=store)


def global_table(builder: StreamsBuilder, serde: Serde[Any]) -> None:
    builder.global_table("in", key_serde=serde, value_serde=str, store="rows")
    builder.stream("other", key_serde=str, value_serde=str).to("out")


def windowed_rows(builder: StreamsBuilder, serde: Serde[Any]) -> None:
    windowed = Serdes.windowed(serde, 10)
    stream = builder.stream("in", key_serde=serde, value_serde=str)
    windows = stream.select_key(lambda key, _: Windowed(key, 0, 10))
    windows.to_table(store="rows", key_serde=windowed, value_serde=str)


@pytest.mark.parametrize(
    "build",
    [
        counted(None),
        counted(TimeWindows(10)),
        counted(SessionWindows(10)),
        versioned_table,
        global_table,
        windowed_rows,
    ],
    ids=["count", "windows", "sessions", "versioned", "global", "windowed keys"],
)
@pytest.mark.parametrize(
    ("make", "as_key"),
    [
        (Serdes.json, dict),
        (partial(Serdes.json, dict[str, int]), dict),
        (partial(Serdes.json, Place), lambda parts: Place(dict(parts))),
        (Serdes.msgpack, dict),
        (partial(Serdes.msgpack, Place), lambda parts: Place(dict(parts))),
        (partial(Serdes.json_schema, {"title": "Key"}), dict),
    ],
    ids=["json", "typed dict", "typed Struct", "msgpack", "msgpack Struct", "json_schema"],
)
def test_rows_under_unsorted_keys_are_refused(
    tmp_path: Path, build: Any, make: Any, as_key: Any
) -> None:
    def run(serde: Serde[Any], key: dict[str, int]) -> None:
        builder = StreamsBuilder()
        build(builder, serde)
        config = StreamsConfig(application_id="rows", bootstrap_servers="unused:9092")
        with TopologyTestDriver(builder.build(), config, state_dir=tmp_path) as driver:
            given = driver.create_input_topic("in", key_serde=serde, value_serde=str)
            given.pipe_input(as_key(key), "x", 1)

    before = given_order(make())
    run(before, UNSORTED)
    with pytest.raises(StoredRowError, match=r"store rows: .*sort_keys=False"):
        run(make(), SORTED)
    run(before, UNSORTED)


@pytest.mark.parametrize("make", [Serdes.json, Serdes.msgpack, partial(Serdes.msgpack, Place)])
def test_rows_under_sorted_keys_are_found(tmp_path: Path, make: Any) -> None:
    def run(serde: Serde[Any], parts: dict[str, int]) -> int:
        key: Any = Place(parts) if is_typed else parts
        builder = StreamsBuilder()
        counted(None)(builder, serde)
        config = StreamsConfig(application_id="rows", bootstrap_servers="unused:9092")
        with TopologyTestDriver(
            builder.build(), config, state_dir=tmp_path / str(run_of)
        ) as driver:
            driver.create_input_topic("in", key_serde=serde, value_serde=str).pipe_input(key, "x")
            return int(driver.get_state_store("rows").get(key).value)

    is_typed = "Place" in make().name
    run_of = "sorted"
    assert run(given_order(make()), SORTED) == 1
    assert run(make(), UNSORTED) == 2
    run_of = "as given"
    assert run(given_order(make()), UNSORTED) == 1
    assert run(make(sort_keys=False), UNSORTED) == 2


def test_a_row_of_an_older_class_does_not_count_as_another_key_order(tmp_path: Path) -> None:
    class Older(msgspec.Struct):
        parts: dict[str, int]

    class Newer(msgspec.Struct):
        parts: dict[str, int]
        more: int = 0

    for python_type in (Older, Newer):
        builder = StreamsBuilder()
        counted(None)(builder, Serdes.json(python_type))
        config = StreamsConfig(application_id="rows", bootstrap_servers="unused:9092")
        with TopologyTestDriver(builder.build(), config, state_dir=tmp_path) as driver:
            serde: Serde[Any] = Serdes.json(python_type)
            given = driver.create_input_topic("in", key_serde=serde, value_serde=str)
            given.pipe_input(python_type(SORTED), "x")
