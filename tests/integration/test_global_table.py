"""Global tables: loaded before the first join, followed, and complete after a restart."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tidewheel import (
    ErrorContext,
    ErrorResponse,
    InvalidStateStoreError,
    KafkaStreamsState,
    Materialized,
    MissingOutputTopicError,
    MissingSourceTopicError,
    Record,
    RestoreEvent,
    Serdes,
    StreamsBuilder,
)
from tidewheel.state_stores.errors import StoreCorruptedError
from tidewheel.streams.exit_codes import exit_code_of
from tidewheel.streams.worker.application.run_options import RunOptions

_STRING = Serdes.string()


@pytest.fixture
def topics(cluster: Cluster, unique: str) -> tuple[str, str, str]:
    cluster.create({f"in-{unique}": 2, f"out-{unique}": 1})
    cluster.create({f"table-{unique}": 5}, cleanup_policy="compact")
    return f"in-{unique}", f"table-{unique}", f"out-{unique}"


def _joined(topics: tuple[str, str, str], store: Materialized | str = "rows") -> StreamsBuilder:
    source, table, output = topics
    builder = StreamsBuilder()
    rows = builder.global_table(table, key_serde=_STRING, value_serde=_STRING, store=store)
    stream = builder.stream(source, key_serde=_STRING, value_serde=_STRING)
    stream.left_join(
        rows, lambda left, right: f"{left}+{right}", key_selector=lambda value: value
    ).to(output, value_serde=_STRING)
    return builder


def _rows(count: int, version: str = "") -> list[tuple[bytes, bytes]]:
    return [(b"k%d" % number, f"row{number}{version}".encode()) for number in range(count)]


def test_the_table_is_complete_before_the_first_record_is_joined(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], topics: tuple[str, str, str]
) -> None:
    source, table, output = topics
    cluster.send(source, [(b"x", b"k%d" % number) for number in range(500)])
    cluster.send(table, _rows(2_000))
    events: list[RestoreEvent] = []

    app = start_app(
        _joined(topics), config, prepare=lambda app: app.set_restore_listener(events.append)
    )

    cluster.wait_until_consumed(config["application_id"], source)
    values = [record.value or b"" for record in cluster.read(output)]
    assert sorted(values) == sorted(f"k{n}+row{n}".encode() for n in range(500))
    ends = [event for event in events if event.kind == "end"]
    assert {event.partition for event in ends} == {0, 1, 2, 3, 4}
    assert sum(event.restored for event in ends) == 2_000
    assert {event.store for event in events} == {"rows"}
    store = app.store("rows")
    assert len(dict(store.all())) == 2_000
    cluster.send(table, [(b"k1", b"new"), (b"k2", None)])
    until(lambda: getattr(store.get("k1"), "value", None) == "new", "the update is there")
    until(lambda: store.get("k2") is None, "the row is deleted")
    # Rows are counted at the write, shortly after they are readable.
    until(lambda: app.metrics()["global-stores"]["update-total"] >= 2_002, "both are counted")
    assert app.metrics()["global-stores"]["update-total"] == 2_002
    assert not cluster.admin.describe_topics([f"{config['application_id']}-rows-changelog"])


@pytest.mark.parametrize("wiped", [False, True])
def test_the_next_process_reads_new_rows_only(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    topics: tuple[str, str, str],
    wiped: bool,
) -> None:
    _, table, _ = topics
    cluster.send(table, _rows(1_000))
    app = start_app(_joined(topics), config)
    assert app.close(timeout=30_000)
    with pytest.raises(InvalidStateStoreError):
        app.store("rows").get("k1")
    (place,) = Path(config["state_dir"]).glob("*/0/global")
    if wiped:
        shutil.rmtree(place)
    cluster.send(table, _rows(10, "b"))
    events: list[RestoreEvent] = []

    app = start_app(
        _joined(topics), config, prepare=lambda app: app.set_restore_listener(events.append)
    )

    restored = sum(event.restored for event in events if event.kind == "end")
    assert restored == (1_010 if wiped else 10)
    assert {key: row.value for key, row in app.store("rows").all()} == {
        key.decode(): value.decode() for key, value in [*_rows(1_000), *_rows(10, "b")]
    }


def test_every_worker_has_the_complete_table(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], topics: tuple[str, str, str]
) -> None:
    source, table, output = topics
    cluster.send(table, _rows(200))
    rows = Materialized("rows", store_type="in_memory")
    workers = [
        start_app(
            _joined(topics, rows), config, options=RunOptions(slot=slot, workers=2, fixed=True)
        )
        for slot in range(2)
    ]
    cluster.send(source, [(b"%d" % number, b"k%d" % number) for number in range(200)])
    cluster.wait_until_consumed(config["application_id"], source)
    values = [record.value or b"" for record in cluster.read(output)]
    assert sorted(values) == sorted(f"k{n}+row{n}".encode() for n in range(200))
    assert [len(dict(worker.store("rows").all())) for worker in workers] == [200, 200]


def test_damage_is_repaired_from_the_topic(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], topics: tuple[str, str, str]
) -> None:
    """A start finds the damaged file, wipes the store and reads the topic (KAFKA-21034 loops)."""
    _, table, _ = topics
    cluster.send(table, _rows(100))
    app = start_app(_joined(topics), config)
    assert app.close(timeout=30_000)
    (place,) = Path(config["state_dir"]).glob("*/0/global")
    for file in place.rglob("MANIFEST-*"):
        file.write_bytes(b"damaged")
    app = start_app(_joined(topics), config)
    assert len(dict(app.store("rows").all())) == 100


def test_a_record_that_does_not_deserialise_ends_the_application(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], topics: tuple[str, str, str]
) -> None:
    _, table, _ = topics
    builder = StreamsBuilder()
    builder.global_table(table, key_serde=_STRING, value_serde=Serdes.int64(), store="rows")
    app = start_app(builder, config)
    cluster.send(table, [(b"k", b"no integer")])
    until(lambda: app.state is KafkaStreamsState.ERROR, "it ends")
    assert "(task global, defined at " in str(app.error)
    config |= {"deserialization_exception_handler": "continue"}
    app = start_app(builder, config)
    assert app.metrics()["global-stores"]["skipped-records-total"] == 1


def test_a_missing_global_topic_is_a_missing_source_topic(
    start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    builder = StreamsBuilder()
    builder.global_table(f"nowhere-{unique}", key_serde=_STRING, value_serde=_STRING)
    app = start_app(builder, config, wait=False)
    until(lambda: app.state is KafkaStreamsState.ERROR, "it ends")
    assert isinstance(app.error, MissingSourceTopicError)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_topics_that_a_function_names_may_be_missing(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    topics: tuple[str, str, str],
    guarantee: str,
) -> None:
    source, _, output = topics
    cluster.send(source, [(b"a", b"1"), (b"b", b"bad name!"), (b"c", b"nowhere"), (b"d", b"2")])
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=_STRING, value_serde=_STRING)
    stream.to(lambda key, value, context: output if value.isdigit() else f"{output}-{value}")
    failed: list[tuple[Any, str]] = []

    def skip(context: ErrorContext, record: Record[Any, Any], error: Exception) -> ErrorResponse:
        failed.append((context.stage, type(error).__name__))
        return ErrorResponse(action="continue")

    settings = config | {"processing_guarantee": guarantee, "production_exception_handler": skip}
    app = start_app(builder, settings)
    cluster.wait_until_consumed(config["application_id"], source)
    assert sorted(record.value or b"" for record in cluster.read(output)) == [b"1", b"2"]
    assert sorted(failed) == [
        ("production", "MissingOutputTopicError"),
        ("production", "ValueError"),
    ]
    assert app.close(timeout=30_000)

    builder = StreamsBuilder()
    builder.stream(source, key_serde=_STRING, value_serde=_STRING).to(f"{output}-nowhere")
    app = start_app(
        builder, settings | {"application_id": f"{config['application_id']}-2"}, wait=False
    )
    until(lambda: app.state is KafkaStreamsState.ERROR, "it ends")
    assert isinstance(app.error, MissingOutputTopicError)
    assert exit_code_of(app.error).is_final


def test_damage_found_by_a_running_worker_is_repaired_from_the_topic(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], topics: tuple[str, str, str]
) -> None:
    source, table, output = topics
    cluster.send(table, _rows(50))
    moves: list[str] = []
    app = start_app(
        _joined(topics),
        config,
        prepare=lambda app: app.set_state_listener(lambda new, _: moves.append(new)),
    )
    cluster.send(source, [(b"x", b"k1")])
    cluster.wait_until_consumed(config["application_id"], source)
    first = app._threads[0].life
    assert first is not None
    running = first.globals
    assert running is not None
    database = running.stores.manager.database("rows")

    def damaged(*_arguments: Any, **_options: Any) -> Any:
        raise StoreCorruptedError("a block is damaged")

    database.get_many = damaged  # type: ignore[method-assign]
    cluster.send(source, [(b"x", b"k2")])
    cluster.wait_until_consumed(config["application_id"], source)
    assert [record.value for record in cluster.read(output)] == [b"k1+row1", b"k2+row2"]
    assert moves == ["REBALANCING", "RUNNING", "REBALANCING", "RUNNING"]
    second = app._threads[0].life
    assert second is not None
    assert second is not first
    assert second.globals is not running
