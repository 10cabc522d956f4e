"""Fixed assignment (N13): settings name the owner, and a new producer fences the former one."""

import hashlib
import signal
import socket
import struct
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.cluster import Cluster, SteadyFeed, until
from tests.integration.conftest import StartApp, StartWorker
from tests.integration.programs.jobs import JOBS, STORE
from tidewheel import ConfigError, IncompatibleMemberError, StreamsConfig
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.streams.bulk.backfill.cut import cut_of_application
from tidewheel.streams.bulk.backfill.driver import BackfillRefused
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import state_topic
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.streams.worker.incarnation import WorkerLife


@pytest.fixture
def topics(cluster: Cluster, unique: str) -> tuple[str, str]:
    cluster.create({f"in-{unique}": 4, f"out-{unique}": 4})
    return f"in-{unique}", f"out-{unique}"


def _record(index: int) -> tuple[bytes, bytes]:
    return b"key-%03d" % (index % 101), b"x"


def _records(count: int) -> list[tuple[bytes, bytes]]:
    return list(map(_record, range(count)))


def _updates(records: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    return {
        key: [struct.pack(">q", number) for number in range(1, count + 1)]
        for key, count in Counter(key for key, _ in records).items()
    }


def _partitions(numbers: dict[str, int]) -> set[int]:
    return {int(name.rpartition("-")[2]) for name in numbers if name.startswith("start:")}


def test_N13_two_workers_share_the_tasks(
    cluster: Cluster, start_worker: StartWorker, config: dict[str, Any], topics: tuple[str, str]
) -> None:
    source, sink = topics
    records = _records(2_000)
    cluster.send(source, records)
    workers = [start_worker("slot-0"), start_worker("slot-1")]
    for slot, worker in enumerate(workers):
        worker.go("count_by_key", source, sink, config, slot=slot, workers=2)

    cluster.wait_until_consumed(config["application_id"], source)

    assert [_partitions(worker.numbers()) for worker in workers] == [{0, 2}, {1, 3}]
    assert [worker.stop() for worker in workers] == [0, 0]
    assert cluster.values_by_key(sink) == _updates(records)


def test_N13_number_of_workers_may_change(
    cluster: Cluster, start_worker: StartWorker, config: dict[str, Any], topics: tuple[str, str]
) -> None:
    source, sink = topics
    records = _records(600)
    for round_number, count in enumerate((1, 2, 1)):
        cluster.send(source, records[round_number * 200 : (round_number + 1) * 200])
        workers = [start_worker(f"slot-{slot}-round-{round_number}") for slot in range(count)]
        for slot, worker in enumerate(workers):
            worker.go("count_by_key", source, sink, config, slot=slot, workers=count)
        cluster.wait_until_consumed(config["application_id"], source)
        for worker in workers:
            worker.wait_until_running()
            assert worker.stop() == 0, worker.log[-3000:]

    assert cluster.values_by_key(sink) == _updates(records)


def test_N13_chosen_tasks_need_an_instance_id(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], topics: tuple[str, str]
) -> None:
    source, sink = topics
    options = RunOptions(tasks=(TaskId(0, 1), TaskId(0, 3)))

    with pytest.raises(ConfigError, match="group_instance_id"):
        start_app(JOBS["count_by_key"](source, sink), config, options=options)

    app = start_app(
        JOBS["count_by_key"](source, sink), config | {"group_instance_id": "a"}, options=options
    )
    assert [task.task_id for task in app.tasks()] == ["0_1", "0_3"]


def test_N13_chosen_tasks_must_exist(
    start_app: StartApp, config: dict[str, Any], topics: tuple[str, str]
) -> None:
    source, sink = topics

    app = start_app(
        JOBS["count_by_key"](source, sink),
        config | {"group_instance_id": "a"},
        options=RunOptions(tasks=(TaskId(0, 9),)),
        wait=False,
    )

    until(lambda: app.error is not None, "the application ends with an error")
    assert isinstance(app.error, ConfigError)
    assert "0_9" in str(app.error)
    assert "0_0, 0_1, 0_2, 0_3" in str(app.error)


def test_N13_processes_with_chosen_tasks_do_not_fence_each_other(
    cluster: Cluster, start_worker: StartWorker, config: dict[str, Any], topics: tuple[str, str]
) -> None:
    source, sink = topics
    records = _records(1_000)
    workers = []
    for name, tasks in (("a", ["0_0", "0_1"]), ("b", ["0_2", "0_3"])):
        worker = start_worker(name)
        worker.go("count_by_key", source, sink, config | {"group_instance_id": name}, tasks=tasks)
        workers.append(worker)
    for worker in workers:
        worker.wait_until_running()

    cluster.send(source, records)
    cluster.wait_until_consumed(config["application_id"], source)

    assert [worker.stop() for worker in workers] == [0, 0]
    assert cluster.values_by_key(sink) == _updates(records)


def test_N9_second_live_worker_of_a_slot_ends_the_first(
    cluster: Cluster,
    start_worker: StartWorker,
    config: dict[str, Any],
    topics: tuple[str, str],
    unique: str,
) -> None:
    source, sink = topics
    feed = SteadyFeed(cluster, source, _record, rate=500)
    feed.start()
    first, second = start_worker("first"), start_worker("second")
    first.go("count_by_key", source, sink, config, slot=0)
    first.wait_until_running()
    until(lambda: first.numbers().get("commits", 0) >= 2, "the first commits")

    second.go(
        "count_by_key", source, sink, config | {"state_dir": config["state_dir"] + unique}, slot=0
    )

    assert first.wait() == ExitCode.FENCED
    assert "FencedError" in first.log
    second.wait_until_running()
    feed.stop()
    cluster.wait_until_consumed(config["application_id"], source)
    assert second.stop() == 0
    assert cluster.values_by_key(sink) == _updates(feed.records)


def test_N13_second_worker_of_a_slot_on_one_machine_is_refused(
    cluster: Cluster, start_worker: StartWorker, config: dict[str, Any], topics: tuple[str, str]
) -> None:
    source, sink = topics
    first, second = start_worker("first"), start_worker("second")
    first.go("count_by_key", source, sink, config, slot=0)
    first.wait_until_running()

    second.go("count_by_key", source, sink, config, slot=0)

    assert second.wait() == ExitCode.REFUSED
    assert f"held by process {first.process.pid}" in second.log
    cluster.send(source, _records(100))
    cluster.wait_until_consumed(config["application_id"], source)
    assert first.stop() == 0


#: Files of a slot that their owner writes once. RocksDB replaces the others by itself.
_WRITTEN_ONCE: Final = (
    ".lock",
    "member.json",
    "rocksdict-config.json",
    "OPTIONS-*",
    "IDENTITY",
    "*.sst",
)


def _files(slot: Path) -> dict[str, tuple[int, int, str]]:
    """Return inode, time of change and digest of each file that is written once."""
    return {
        str(file.relative_to(slot)): (
            file.stat().st_ino,
            file.stat().st_mtime_ns,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for pattern in _WRITTEN_ONCE
        for file in slot.rglob(pattern)
    }


@pytest.mark.fault("39")
@pytest.mark.parametrize("exclusive", [False, True])
def test_two_processes_on_one_state_directory_never_share_files(
    cluster: Cluster,
    start_worker: StartWorker,
    config: dict[str, Any],
    topics: tuple[str, str],
    exclusive: bool,
) -> None:
    source, sink = topics
    earlier, first, second = (start_worker(name) for name in ("earlier", "first", "second"))
    cluster.send(source, _records(50))
    earlier.go("count_by_key", source, sink, config)
    cluster.wait_until_consumed(config["application_id"], source)
    assert earlier.stop() == ExitCode.OK, earlier.log[-4000:]
    first.go("count_by_key", source, sink, config)
    first.wait_until_running()
    slots = Path(config["state_dir"], config["application_id"])
    before = _files(slots / "0")
    names = Counter(Path(file).name for file in before)
    assert names["rocksdict-config.json"] == 4
    assert any(name.endswith(".sst") for name in names)

    second.go("count_by_key", source, sink, config | {"state_dir_exclusive": exclusive})
    if exclusive:
        assert second.wait() == ExitCode.REFUSED, second.log[-4000:]
        assert f"by process {first.process.pid}" in second.log
        assert "in slot 0" in second.log
    else:
        second.wait_until_running()
    assert _files(slots / "0") == before

    cluster.send(source, _records(50))
    if exclusive:
        assert not (slots / "1").exists()
        cluster.wait_until_consumed(config["application_id"], source)
        assert first.stop() == ExitCode.OK, first.log[-4000:]
    else:
        # Each runs all tasks, so only the last one can continue. The other notices at its next
        # commit.
        assert first.wait() == ExitCode.FENCED, first.log[-4000:]
        cluster.wait_until_consumed(config["application_id"], source)
        assert len(list((slots / "1").glob("0_*"))) == 4
        assert second.stop() == ExitCode.OK, second.log[-4000:]
    assert cluster.values_by_key(sink) == _updates(_records(50) * 2)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_N13_earlier_producers_are_fenced_before_the_first_record(
    cluster: Cluster,
    start_worker: StartWorker,
    config: dict[str, Any],
    topics: tuple[str, str],
    unique: str,
    guarantee: str,
) -> None:
    source, sink = topics
    config["processing_guarantee"] = guarantee
    feed = SteadyFeed(cluster, source, _record, rate=500)
    feed.start()
    frozen, successor = start_worker("frozen"), start_worker("successor")
    frozen.go(
        "count_by_key",
        source,
        sink,
        config | {"group_instance_id": "a"},
        failpoints="before_commit:1:stop",
        armed_at_change=3,
    )
    until(lambda: frozen.numbers().get("commits", 0) == 2, "it has committed twice")
    until(lambda: frozen.is_stopped, "it is frozen inside its third transaction")

    successor.go(
        "count_by_key",
        source,
        sink,
        config | {"group_instance_id": "b", "state_dir": config["state_dir"] + unique},
    )
    successor.wait_until_running()
    begun = successor.numbers()
    frozen.send(signal.SIGCONT)

    assert frozen.wait() == ExitCode.FENCED, frozen.log[-3000:]
    assert f"{config['application_id']}-fixed-a-0" in successor.log, "it says whom it fenced"
    feed.stop()
    cluster.wait_until_consumed(config["application_id"], source)
    assert successor.stop() == 0
    output = cluster.values_by_key(sink)
    expected = _updates(feed.records)
    if guarantee == "exactly_once":
        assert output == expected
    else:
        assert {key: set(values) for key, values in output.items()} == {
            key: set(values) for key, values in expected.items()
        }
    changelog = cluster.folded(f"{config['application_id']}-{STORE}-changelog")
    assert {key: value for key, (value, _) in changelog.items()} == {
        key: values[-1] for key, values in expected.items()
    }
    # The frozen transaction was aborted: its records were processed again.
    assert any(
        frozen.numbers()["position:" + name.removeprefix("start:")] > offset
        for name, offset in begun.items()
        if name.startswith("start:")
    )


def test_a_fixed_worker_starts_only_after_a_live_group_has_left(
    cluster: Cluster, start_worker: StartWorker, config: dict[str, Any], topics: tuple[str, str]
) -> None:
    source, sink = topics
    records = _records(600)
    member, refused, late = (start_worker(name) for name in ("member", "refused", "late"))
    member.go("count_by_key", source, sink, config, fixed=False)
    member.wait_until_running()
    cluster.send(source, records[:200])
    cluster.wait_until_consumed(config["application_id"], source)

    refused.go("count_by_key", source, sink, config, slot=1, workers=2)

    assert refused.wait() == ExitCode.INCOMPATIBLE_MEMBER, refused.log[-3000:]
    assert f"members of {config['application_id']} are alive: " in refused.log
    assert f" at {socket.gethostname()}" in refused.log
    assert "stop the application everywhere first" in refused.log
    cluster.send(source, records[200:400])
    cluster.wait_until_consumed(config["application_id"], source)
    assert member.stop() == 0, member.log[-3000:]
    late.go("count_by_key", source, sink, config)
    cluster.send(source, records[400:])
    cluster.wait_until_consumed(config["application_id"], source)
    assert late.stop() == 0, late.log[-3000:]
    assert cluster.values_by_key(sink) == _updates(records)


def test_a_member_is_refused_while_fixed_workers_live_and_joins_after_they_left(
    cluster: Cluster, start_worker: StartWorker, config: dict[str, Any], topics: tuple[str, str]
) -> None:
    source, sink = topics
    app, records = config["application_id"], _records(600)
    fixed, refused, late = (start_worker(name) for name in ("fixed", "refused", "late"))
    fixed.go("count_by_key", source, sink, config)
    fixed.wait_until_running()
    until(lambda: cluster.admin.fixed_workers(app), "it shows that it lives")
    cluster.send(source, records[:200])
    cluster.wait_until_consumed(app, source)

    refused.go("count_by_key", source, sink, config, fixed=False)

    assert refused.wait() == ExitCode.INCOMPATIBLE_MEMBER, refused.log[-3000:]
    assert f"workers of {app} with a fixed assignment are alive: {app}-fixed-0 at " in refused.log
    assert "stop them first" in refused.log
    assert state_topic(app) not in cluster.admin.list_topics(), "it has begun nothing"
    cluster.send(source, records[200:400])
    cluster.wait_until_consumed(app, source)
    assert fixed.stop() == 0, fixed.log[-3000:]
    late.go("count_by_key", source, sink, config, fixed=False)
    cluster.send(source, records[400:])
    cluster.wait_until_consumed(app, source)
    assert late.stop() == 0, late.log[-3000:]
    assert cluster.values_by_key(sink) == _updates(records)


def test_another_application_may_continue_where_stopped_workers_have_committed(
    cluster: Cluster, start_worker: StartWorker, config: dict[str, Any], topics: tuple[str, str]
) -> None:
    source, sink = topics
    app, partitions = config["application_id"], [TopicPartition(source, n) for n in range(4)]
    fixed = start_worker("fixed")
    fixed.go("count_by_key", source, sink, config)
    fixed.wait_until_running()
    until(lambda: cluster.admin.fixed_workers(app), "it shows that it lives")
    cluster.send(source, [(b"one-key", b"x")] * 10)  # the other partitions stay empty
    cluster.wait_until_consumed(app, source)
    new = StreamsConfig(application_id=f"{app}-v2", bootstrap_servers=cluster.bootstrap_servers)
    with closing(KafkaResetAdmin(settings_of(new)).found()) as admin:
        with pytest.raises(BackfillRefused, match=f"are alive: {app}-fixed-0 at "):
            cut_of_application(new, app, admin)
        assert fixed.stop() == 0, fixed.log[-3000:]
        cut = cut_of_application(new, app, admin)
        assert cut.ends(partitions) == {at: cluster.committed(app)[at] for at in partitions}


@pytest.mark.parametrize("late", ["fixed", "member"])
def test_one_of_a_member_and_a_fixed_worker_that_start_together_is_refused(
    start_worker: StartWorker,
    start_app: StartApp,
    config: dict[str, Any],
    topics: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    late: str,
) -> None:
    """One worker has checked for others but does not process yet; then the other starts.

    Global stores can make that time long. A worker with fixed assignment is visible by then. A
    group member is not: it checks for the other itself before it accepts a task.
    """
    source, sink = topics
    looked, go_on = threading.Event(), threading.Event()
    restore = WorkerLife._restore_globals

    def restore_late(life: WorkerLife, *given: Any) -> bool:
        looked.set()
        assert go_on.wait(300)
        return restore(life, *given)

    monkeypatch.setattr(WorkerLife, "_restore_globals", restore_late)
    slow = start_app(
        JOBS["count_by_key"](source, sink),
        config,
        options=RunOptions(fixed=late == "fixed"),
        wait=False,
    )
    assert looked.wait(300)
    other = start_worker("other")
    other.go("count_by_key", source, sink, config, fixed=late == "member")

    if late == "fixed":
        assert other.wait() == ExitCode.INCOMPATIBLE_MEMBER, other.log[-3000:]
        assert "with a fixed assignment are alive" in other.log
        go_on.set()
        until(lambda: slow.tasks() != [], "the one that was seen goes on")
        assert slow.error is None
    else:
        other.wait_until_running()
        go_on.set()
        until(lambda: slow.error is not None, "the one that was not seen looks again")
        assert isinstance(slow.error, IncompatibleMemberError)
        assert "with a fixed assignment are alive" in str(slow.error)
        assert other.stop() == 0, other.log[-3000:]
