"""Restarts: after a clean stop, without local state, on damaged files, on changed changelogs."""

import itertools
import logging
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.conftest import StartApp
from tests.integration.outcome import wait_for_counts
from tests.integration.programs.jobs import JOBS, STORE
from tidewheel import (
    KafkaStreams,
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    RunOptions,
    Serdes,
    StateStoreError,
    StreamsBuilder,
    StreamsError,
    ValueAndTimestamp,
)
from tidewheel.tasks.restore.state_updater import RestoreEvent

_RECORDS = [(b"key-%03d" % (index * 7 % 400), b"x" * 50) for index in range(3_000)]


@pytest.fixture
def source(cluster: Cluster, unique: str) -> str:
    cluster.create({f"in-{unique}": 2, f"out-{unique}": 2})
    cluster.send(f"in-{unique}", _RECORDS)
    return f"in-{unique}"


@pytest.fixture
def run(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], source: str, unique: str
) -> Callable[..., dict[str, ValueAndTimestamp[int]]]:
    def run_once(
        job: str = "count_by_key",
        events: list[RestoreEvent] | None = None,
        *,
        counted: int = len(_RECORDS),
    ) -> dict[str, ValueAndTimestamp[int]]:
        def prepare(app: KafkaStreams) -> None:
            app.set_restore_listener(([] if events is None else events).append)

        app = start_app(JOBS[job](source, f"out-{unique}"), config, prepare=prepare)
        cluster.wait_until_consumed(config["application_id"], source)
        content = wait_for_counts(app, STORE, counted)
        assert app.close(timeout=30_000)
        assert app.error is None
        return content

    return run_once


def _expected(records: list[tuple[bytes, bytes]]) -> dict[str, ValueAndTimestamp[int]]:
    counts = Counter(key for key, _ in records)
    latest = {key: 1_000 + index for index, (key, _) in enumerate(records)}
    return {key.decode(): ValueAndTimestamp(counts[key], latest[key]) for key in counts}


def _databases(config: dict[str, Any]) -> Path:
    return Path(config["state_dir"], config["application_id"], "0")


def _damage_stores(config: dict[str, Any]) -> None:
    """Damage a data block of each store; index and positions stay valid, so it opens."""
    for task in ("0_0", "0_1"):
        files = (_databases(config) / task).glob("*.sst")
        largest = max(files, key=lambda file: file.stat().st_size)
        data = bytearray(largest.read_bytes())
        begin = len(data) // 3
        data[begin : begin + 64] = b"\xff" * 64
        largest.write_bytes(data)


def test_N13_clean_stop_leaves_nothing_to_restore(
    run: Callable[..., dict[str, ValueAndTimestamp[int]]], cluster: Cluster, source: str
) -> None:
    run()
    sent = list(_RECORDS)
    for more in range(4):
        events: list[RestoreEvent] = []
        cluster.send(source, _RECORDS[: more * 100], first_timestamp=1_000 + len(sent))
        sent += _RECORDS[: more * 100]

        content = run(events=events, counted=len(sent))

        assert events == []
        assert content == _expected(sent)


@pytest.mark.parametrize("job", ["count_by_key", "count_in_memory"])
def test_N4_lost_state_is_rebuilt_from_the_log(
    run: Callable[..., dict[str, ValueAndTimestamp[int]]], config: dict[str, Any], job: str
) -> None:
    before = run(job)
    shutil.rmtree(config["state_dir"])
    events: list[RestoreEvent] = []

    after = run(job, events)

    assert before == after == _expected(_RECORDS)
    ends = [event for event in events if event.kind == "end"]
    assert len(ends) == 2, "one per partition"
    assert sum(event.restored for event in ends) >= len(before)
    assert next(event.kind for event in events if event.partition == 0) == "start"


def test_store_in_memory_is_restored_at_every_start(
    run: Callable[..., dict[str, ValueAndTimestamp[int]]],
) -> None:
    before = run("count_in_memory")

    assert run("count_in_memory") == before == _expected(_RECORDS)


@pytest.mark.fault("27")
def test_truncated_file_is_wiped_and_restored(
    run: Callable[..., dict[str, ValueAndTimestamp[int]]],
    config: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = run()
    file = min((_databases(config) / "0_1").glob("*.sst"))
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 100)
    events: list[RestoreEvent] = []

    assert run(events=events) == before

    assert {event.partition for event in events} == {1}, "the other task's state was sound"
    assert "task 0_1" in caplog.text
    assert "wiping it and restoring from the changelog" in caplog.text


@pytest.mark.fault("26")
def test_block_found_damaged_while_running_is_restored(
    run: Callable[..., dict[str, ValueAndTimestamp[int]]],
    config: dict[str, Any],
    cluster: Cluster,
    source: str,
) -> None:
    run()
    _damage_stores(config)
    more = _RECORDS[:1_000]
    cluster.send(source, more, first_timestamp=1_000 + len(_RECORDS))
    events: list[RestoreEvent] = []

    content = run(events=events, counted=len(_RECORDS + more))

    assert content == _expected(_RECORDS + more)
    assert any(event.kind == "end" for event in events), "a task was restored"


@pytest.mark.fault("26")
def test_scan_of_a_damaged_store_serves_no_part_of_it(
    run: Callable[..., dict[str, ValueAndTimestamp[int]]],
    config: dict[str, Any],
    cluster: Cluster,
    start_app: StartApp,
    source: str,
    unique: str,
) -> None:
    run()
    _damage_stores(config)
    app = start_app(JOBS["count_by_key"](source, f"out-{unique}"), config)
    for _ in range(2):
        with pytest.raises(StateStoreError):
            dict(app.store(STORE).all())
    cluster.send(source, _RECORDS[:1_000], first_timestamp=1_000 + len(_RECORDS))
    expected = _expected(_RECORDS + _RECORDS[:1_000])
    partitions: defaultdict[int, set[str]] = defaultdict(set)
    for record in cluster.read(source):
        partitions[record.partition].add(record.key.decode())
    scans: list[set[str]] = []

    def is_restored() -> bool:
        content: dict[str, ValueAndTimestamp[int]] = {}
        with suppress(StateStoreError):
            content = dict(app.store(STORE).all())
            scans.append(set(content))
        return content == expected

    until(is_restored, "the store is restored")
    for keys, scanned in itertools.product(partitions.values(), scans):
        assert scanned >= keys or not scanned & keys, "a partition was served in part"


class _Counting(Processor[str, bytes, str, int]):
    def init(self, context: ProcessorContext[str, int]) -> None:
        self._context = context
        self._store: KeyValueStore[str, int] = context.get_state_store("own")

    def process(self, record: Record[str, bytes]) -> None:
        count = (self._store.get(record.key) or 0) + 1
        self._store.put(record.key, count)
        self._context.forward(record.replace(value=count))


def test_damage_is_no_processing_error(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], source: str, unique: str
) -> None:
    from tidewheel import Stores  # noqa: PLC0415 - only this test has a store of its own

    config["processing_exception_handler"] = "continue"

    def topology() -> StreamsBuilder:
        builder = StreamsBuilder()
        builder.add_state_store(
            Stores.key_value("own", key_serde=Serdes.string(), value_serde=Serdes.int64())
        )
        builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.bytes()).process(
            _Counting, stores=["own"]
        ).to(f"out-{unique}", key_serde=Serdes.string(), value_serde=Serdes.int64())
        return builder

    app = start_app(topology(), config)
    cluster.wait_until_consumed(config["application_id"], source)
    assert app.close(timeout=30_000)
    _damage_stores(config)
    cluster.send(source, _RECORDS[:1_000], first_timestamp=1_000 + len(_RECORDS))

    app = start_app(topology(), config)
    cluster.wait_until_consumed(config["application_id"], source)

    counts = Counter(key.decode() for key, _ in _RECORDS + _RECORDS[:1_000])
    until(lambda: dict(app.store("own").all()) == counts, "the store has what was committed")


@pytest.mark.fault("36")
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "group"])
def test_deleted_changelog_stops_the_start(
    run: Callable[..., dict[str, ValueAndTimestamp[int]]],
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    source: str,
    unique: str,
    fixed: bool,
) -> None:
    run()
    changelog = f"{config['application_id']}-{STORE}-changelog"
    cluster.admin.delete_topics([changelog])
    job, options = JOBS["count_by_key"](source, f"out-{unique}"), RunOptions(fixed=fixed)

    app = start_app(job, config, options=options, wait=False)

    until(lambda: app.error is not None, "the application ends with an error")
    assert isinstance(app.error, StreamsError)
    assert changelog in str(app.error)
    assert "tidewheel reset" in str(app.error)
    assert changelog not in cluster.admin.list_topics()


@pytest.mark.fault("29")
def test_recreated_changelog_overrides_local_state(
    run: Callable[..., dict[str, ValueAndTimestamp[int]]],
    cluster: Cluster,
    config: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = run()
    changelog = f"{config['application_id']}-{STORE}-changelog"
    backup = cluster.read(changelog)
    cluster.admin.delete_topics([changelog])
    cluster.create({changelog: 2}, cleanup_policy="compact")
    for partition in range(2):
        rows = [(record.key, record.value) for record in backup if record.partition == partition]
        cluster.send(changelog, rows[:50], partition=partition, first_timestamp=5_000)
    kept = {
        key.decode(): ValueAndTimestamp(int.from_bytes(value, "big"), timestamp)
        for key, (value, timestamp) in cluster.folded(changelog).items()
    }

    with caplog.at_level(logging.INFO, "tidewheel.tasks"):
        after = run(counted=sum(each.value for each in kept.values()))

    assert after == kept
    assert after != before
    assert "the changelog topic was recreated" in caplog.text


@pytest.mark.fault("36")
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "group"])
def test_deletion_of_a_changelog_ends_the_running_application(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    source: str,
    unique: str,
    fixed: bool,
) -> None:
    job, options = JOBS["count_by_key"](source, f"out-{unique}"), RunOptions(fixed=fixed)
    app = start_app(job, config, options=options)
    cluster.wait_until_consumed(config["application_id"], source)
    # The client may or may not have noticed yet. If so, it keeps the records for one call's limit.
    worker = app._threads[0].worker
    assert worker is not None
    producer: Any = worker._loop.commits.round.committer.producer
    producer._timeout_s = 3.0
    committed = cluster.committed(config["application_id"])
    changelog = f"{config['application_id']}-{STORE}-changelog"
    cluster.admin.delete_topics([changelog])

    cluster.send(source, _RECORDS[:10])

    until(lambda: app.error is not None, "the application ends with an error", PATIENCE_S)
    assert changelog in str(app.error)
    assert cluster.committed(config["application_id"]) == committed
    app.close()
    again = start_app(job, config, options=options, wait=False)
    until(lambda: again.error is not None, "the next start is refused")
    assert changelog in str(again.error)
    assert changelog not in cluster.admin.list_topics(), "it is not created again"
