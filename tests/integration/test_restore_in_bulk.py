"""Restores from sorted runs and snapshots, killed in between: every key is right."""

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp, StartWorker
from tests.integration.programs.jobs import JOBS, STORE
from tests.integration.programs.probes import runs_from
from tests.tasks.task.snapshots import publish_snapshot
from tidewheel import KafkaStreamsState, StreamsConfig, ValueAndTimestamp
from tidewheel.streams.kafka.clients import KafkaClients
from tidewheel.streams.worker.application import wiring
from tidewheel.tasks.restore.state_updater import RestoreEvent

#: Gap (records) for sorted runs; the product's is ten times it.
_RUNS_FROM = 10_000
#: Above the gap in each partition.
_KEYS = 22_000
_TAIL = 500
#: A tail that is also built into runs, after a snapshot.
_LONG_TAIL = 10_200

Content = dict[str, ValueAndTimestamp[int]]


@pytest.fixture(autouse=True)
def _runs_pay_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "RunSettings", runs_from(_RUNS_FROM))


@pytest.fixture
def filled(cluster: Cluster, unique: str, config: dict[str, Any]) -> str:
    cluster.create({f"in-{unique}": 2, f"out-{unique}": 2})
    config["commit_interval_ms"] = 1_000
    config["statestore_cache_max_bytes"] = 100 << 20
    return f"in-{unique}"


def send(cluster: Cluster, topic: str, keys: range) -> None:
    cluster.send(topic, [(b"key-%07d" % number, b"x") for number in keys])


@pytest.fixture
def run(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], filled: str, unique: str
) -> Callable[..., Content]:
    def run_once(events: list[RestoreEvent] | None = None, **settings: Any) -> Content:
        app = start_app(
            JOBS["count_by_key"](filled, f"out-{unique}"),
            {**config, **settings},
            prepare=lambda app: app.set_restore_listener(([] if events is None else events).append),
        )
        cluster.wait_until_consumed(config["application_id"], filled)
        records = sum(cluster.ends(filled).values())
        content: Content = {}

        def all_is_there() -> bool:  # the store follows the commit
            content.update(app.store(STORE).all())
            return sum(row.value for row in content.values()) >= records

        until(all_is_there, "the store has all that is committed")
        assert app.close(timeout=30_000)
        assert app.error is None
        return content

    return run_once


def forget_state(config: dict[str, Any]) -> None:
    shutil.rmtree(Path(config["state_dir"]) / config["application_id"])


def take_snapshot(
    cluster: Cluster, config: dict[str, Any], job: Any, location: Path, *, tail: int = 0
) -> None:
    settings = StreamsConfig(**config)
    clients = KafkaClients(
        bootstrap_servers=settings.bootstrap_servers, application_id=settings.application_id
    )
    (subtopology,) = job.build(settings).spec(settings).subtopologies
    (spec,) = subtopology.stores
    topic = f"{settings.application_id}-{STORE}-changelog"
    admin = clients.admin()
    try:
        partitions = cluster.partitions(topic)
        starts, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
        publish_snapshot(
            clients.changelog_reader,
            spec,
            location,
            settings.application_id,
            topic_id=admin.describe_topics([topic])[topic].topic_id,
            bounds={
                partition: (starts[partition], ends[partition] - tail) for partition in partitions
            },
            now_ms=time.time_ns() // 1_000_000,
        )
    finally:
        admin.close()


@pytest.mark.fault("6")
def test_runs_and_snapshots_restore_every_key_after_kills(
    cluster: Cluster,
    run: Callable[..., Content],
    start_worker: StartWorker,
    filled: str,
    unique: str,
    config: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = f"out-{unique}"
    send(cluster, filled, range(_KEYS))
    expected = run()
    assert len(expected) == _KEYS

    # Killed during an ingest of runs that a helper built. The next life finds no valid state and
    # restores again.
    for step in ("before_ingest", "after_ingest"):
        forget_state(config)
        worker = start_worker(step)
        worker.go(
            "count_by_key",
            filled,
            sink,
            config,
            failpoints=f"{step}:2:kill9",
            runs_from=_RUNS_FROM,
        )
        assert worker.process.wait(300) == -signal.SIGKILL
    events: list[RestoreEvent] = []
    with caplog.at_level(logging.INFO):
        assert run(events) == expected
    assert "restoring from changelog" in caplog.text
    assert {event.kind for event in events} == {"start", "batch", "end"}
    assert sum(event.restored for event in events if event.kind == "end") <= _KEYS

    # From an old snapshot whose tail is long enough for runs; they lie above the snapshot.
    job = JOBS["count_by_key"](filled, sink)
    location = Path(config["state_dir"]).with_name("snapshots")
    take_snapshot(cluster, config, job, location, tail=_LONG_TAIL)
    forget_state(config)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert run(snapshot_location=str(location)) == expected
    assert caplog.text.count("restoring from snapshot") == 2
    assert caplog.text.count(f"then {_LONG_TAIL} offsets to read") == 2

    # From a new one: only the tail is read.
    take_snapshot(cluster, config, job, location)
    send(cluster, filled, range(_TAIL))
    expected = run()
    forget_state(config)
    caplog.clear()
    events.clear()
    with caplog.at_level(logging.INFO):
        assert run(events, snapshot_location=str(location)) == expected
    assert caplog.text.count("restoring from snapshot") == 2
    assert "restoring from changelog" not in caplog.text

    # A damaged file: the snapshot is refused, and the changelog is used.
    for file in location.rglob("*.sst"):
        file.write_bytes(file.read_bytes()[:-100])
    forget_state(config)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert run(snapshot_location=str(location)) == expected
    assert "continuing without the snapshot" in caplog.text


@pytest.mark.fault("58")
def test_helpers_that_are_killed_repeatedly_are_replaced_or_done_without(
    cluster: Cluster,
    run: Callable[..., Content],
    start_app: StartApp,
    filled: str,
    unique: str,
    config: dict[str, Any],
    record_property: Callable[..., None],
) -> None:
    send(cluster, filled, range(_KEYS))
    expected = run()
    forget_state(config)
    config["consumer"] = {"sasl.password": "canary-7d1f"}  # not used without SASL, but passed on
    app = start_app(
        JOBS["count_by_key"](filled, f"out-{unique}"), config, prepare=lambda _: None, wait=False
    )
    helpers = app._restore_helpers  # no public method lists these processes
    until(helpers.pids, "a helper is started")
    for pid in helpers.pids():
        for name in ("cmdline", "environ"):
            assert b"canary" not in Path(f"/proc/{pid}/{name}").read_bytes()
    killed: set[int] = set()

    def is_running() -> bool:
        for pid in set(helpers.pids()) - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        return app.state is KafkaStreamsState.RUNNING

    until(is_running, "the state is restored although every helper is killed")
    record_property("times", len(killed))
    assert len(killed) > 1
    assert dict(app.store(STORE).all()) == expected
