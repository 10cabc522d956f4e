"""Groups: tasks move to newcomers, away from leaving members, and after a death."""

import signal
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.golden.test_golden import CASES
from tests.integration.cluster import PATIENCE_S, Cluster, SteadyFeed, until
from tests.integration.conftest import StartApp, StartWorker
from tests.integration.processes import WORKER, WorkerProcess, numbered, owned
from tests.integration.programs.jobs import JOBS, STORE
from tidewheel import (
    HostInfo,
    InvalidStateStoreError,
    KafkaStreams,
    KeyQueryMetadata,
    Materialized,
    RunOptions,
    StreamsBuilder,
    StreamsError,
)
from tidewheel.rebalance.protocol.messages import DiskCopy, JoinGroup, decode_message
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import inbox_topic
from tidewheel.streams.worker.metrics import TaskInfo
from tidewheel.tasks.kafka.internal_topics import changelog_topic
from tidewheel.tasks.restore.state_updater import RestoreEvent

#: Members settle immediately: moves begin without delay.
QUICK = {"settling_ms": 0}
GROUPED = RunOptions()
PARTITIONS = 4


@pytest.fixture
def topics(cluster: Cluster, unique: str) -> tuple[str, str]:
    cluster.create({f"in-{unique}": PARTITIONS, f"out-{unique}": PARTITIONS})
    return f"in-{unique}", f"out-{unique}"


def _record(number: int) -> tuple[bytes, bytes]:
    return b"key-%03d" % (number % 101), b"x"


def _updates(records: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    return {
        key: [struct.pack(">q", number) for number in range(1, count + 1)]
        for key, count in Counter(key for key, _ in records).items()
    }


def _roles(tasks: list[TaskInfo], role: str, state: str | None = None) -> set[str]:
    return {task.task_id for task in tasks if task.role == role and state in (None, task.state)}


class Group:
    def __init__(
        self, cluster: Cluster, config: dict[str, Any], topics: tuple[str, str], start: StartWorker
    ) -> None:
        self.cluster = cluster
        self.config = config | QUICK
        self.source, self.sink = topics
        self._start = start
        self.feed = SteadyFeed(cluster, self.source, _record, rate=500)
        self.feed.start()

    def start(
        self, name: str, program: str = WORKER, *, fixed: bool = False, **settings: Any
    ) -> WorkerProcess:
        worker = self._start(name, program)
        config = self.config | settings
        worker.go("count_by_key", self.source, self.sink, config, fixed=fixed)
        return worker

    def until_shared(self, *workers: WorkerProcess, timeout_s: float = PATIENCE_S) -> None:
        """Wait until these workers are RUNNING with equal shares, and each partition has one owner."""

        def shared() -> bool:
            shares = [owned(worker) for worker in workers]
            return (
                all(worker.is_running for worker in workers)
                and set().union(*shares) == set(range(PARTITIONS))
                and {len(share) for share in shares} == {PARTITIONS // len(workers)}
            )

        until(shared, "every worker has its share", timeout_s)

    def stop_feeding(self) -> None:
        self.feed.stop()
        self.cluster.wait_until_consumed(self.config["application_id"], self.source)

    def check(self) -> None:
        self.stop_feeding()
        assert self.cluster.values_by_key(self.sink) == _updates(self.feed.records)


@pytest.fixture
def group(
    cluster: Cluster, config: dict[str, Any], topics: tuple[str, str], start_worker: StartWorker
) -> Group:
    return Group(cluster, config, topics, start_worker)


def test_L3_a_newcomer_gets_its_share_and_nothing_is_lost(group: Group) -> None:
    first = group.start("first")
    first.wait_until_running()
    second = group.start("second")
    group.until_shared(first, second)
    group.check()
    assert second.stop() == ExitCode.OK, second.log[-4000:]
    assert first.stop() == ExitCode.OK, first.log[-4000:]


def test_L4_a_stopping_worker_drains(group: Group) -> None:
    workers = [group.start("first"), group.start("second")]
    group.until_shared(*workers)
    leaving, staying = workers
    assert leaving.stop() == ExitCode.OK, leaving.log[-4000:]
    group.until_shared(staying)
    group.check()


def test_N9_tasks_of_a_killed_worker_continue_on_another_worker(group: Group) -> None:
    workers = [group.start("first"), group.start("second")]
    group.until_shared(*workers)
    killed, survivor = workers
    killed.kill()
    group.until_shared(survivor)
    group.check()


def test_S1_a_static_member_that_bounces_gets_its_tasks_back(group: Group) -> None:
    staying = group.start("first", group_instance_id="first")
    staying.wait_until_running()
    bouncing = group.start("second", group_instance_id="second")
    group.until_shared(staying, bouncing)
    theirs, mine = numbered(staying, "begun"), owned(bouncing)
    assert bouncing.stop() == ExitCode.OK, bouncing.log[-4000:]
    again = group.start("again", group_instance_id="second")
    until(lambda: owned(again) == mine, "its tasks are back")
    group.check()
    assert numbered(staying, "begun") == theirs, "nothing was begun again"
    assert [worker.stop() for worker in (staying, again)] == [ExitCode.OK, ExitCode.OK]


def test_a_join_has_the_position_of_state_on_disk_and_the_number_of_threads(
    group: Group,
) -> None:
    app = group.config["application_id"]
    threads: dict[str, Any] = {"num_stream_threads": 2, "parallelising_factor": 2}
    first = group.start("first", **threads)
    until(lambda: len(owned(first)) == PARTITIONS, "it has all tasks")
    group.feed.stop()
    group.cluster.wait_until_consumed(app, group.source)
    assert first.stop() == ExitCode.OK, first.log[-3000:]
    second = group.start("second", **threads)
    second.wait_until_running()

    joins: dict[str, JoinGroup] = {}
    for each in group.cluster.read(inbox_topic(app)):
        message = decode_message(each.value or b"")
        if isinstance(message, JoinGroup):
            joins.setdefault(message.incarnation, message)
    one, two = joins.values()
    assert (one.threads, one.on_disk) == (2, ())
    assert two.threads == 2
    changelog = changelog_topic(app, STORE)
    at_end = {record.partition: record.offset + 1 for record in group.cluster.read(changelog)}
    assert two.on_disk == tuple(
        DiskCopy(task=f"0_{number}", positions={f"{changelog}-{number}": at_end[number]})
        for number in range(PARTITIONS)
    )


def test_S3_the_later_of_two_members_of_one_name_wins(group: Group, tmp_path: Path) -> None:
    first = group.start("first", group_instance_id="one")
    first.wait_until_running()
    second = group.start("second", group_instance_id="one", state_dir=str(tmp_path / "elsewhere"))
    assert first.wait() == ExitCode.FENCED, first.log[-4000:]
    group.until_shared(second)
    group.check()


def test_a_worker_that_was_suspended_rejoins_by_itself(group: Group) -> None:
    first = group.start("first")
    first.wait_until_running()
    hung = group.start("hung", worker_hang_timeout_ms=1_000)
    group.until_shared(first, hung)
    hung.send(signal.SIGSTOP)
    group.until_shared(first)
    hung.send(signal.SIGCONT)
    until(lambda: "joining the group again" in hung.log, "it finds itself fenced")
    group.until_shared(first, hung)
    group.check()
    assert hung.stop() == ExitCode.OK, hung.log[-4000:]


def _table(source: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    builder.table(source, key_serde=str, value_serde=str, store=Materialized(STORE))
    return builder


def test_L1_L2_golden_learner_scale_out_promotes_without_restore(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    case = CASES["learner_scale_out_promotes_without_restore"]
    count = next(given["count"] for given in case["inputs"] if "count" in given)
    source = f"in-{unique}"
    cluster.create({source: 2})
    cluster.send(source, [(str(number).encode(), b"v" * 1_000) for number in range(count)])
    settings = (
        config
        | QUICK
        | {
            "commit_interval_ms": 100,
            "acceptable_recovery_lag": 0,
            "topology_optimization": "none",
        }
    )
    old = start_app(_table(source), settings, options=GROUPED)
    cluster.wait_until_consumed(settings["application_id"], source)
    changelog = f"{settings['application_id']}-{STORE}-changelog"
    assert len(cluster.folded(changelog)) == count
    events: list[RestoreEvent] = []
    seen: list[list[TaskInfo]] = []
    promoted_at: list[int] = []

    def watch(app: KafkaStreams) -> bool:
        seen.append(app.tasks())
        if _roles(seen[-1], "active", "RUNNING") and not promoted_at:
            promoted_at.append(len(events))
        return bool(promoted_at)

    new = start_app(
        _table(source),
        settings,
        options=GROUPED,
        prepare=lambda app: app.set_restore_listener(events.append),
        wait=False,
    )
    until(lambda: watch(new), "the newcomer has an active task")

    (moved,) = _roles(seen[-1], "active")
    before = [tasks for tasks in seen if tasks and not _roles(tasks, "active")]
    assert before, "a learner came first"
    assert {task.role for tasks in before for task in tasks} == {"learner"}
    assert {task.task_id for tasks in before for task in tasks} == {moved}
    until(lambda: moved not in {task.task_id for task in old.tasks()}, "the old owner has no trace")
    assert len(old.tasks()) == 1
    after = [event for event in events[promoted_at[0] :] if event.kind in ("batch", "end")]
    assert [event.restored for event in after if event.restored] == []


def test_R1_stale_stores_are_read_from_copies(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], topics: tuple[str, str]
) -> None:
    source, sink = topics
    records = [_record(number) for number in range(1_000)]
    cluster.send(source, records)
    settings = config | QUICK | {"num_standby_replicas": 1}
    apps = [
        start_app(JOBS["count_by_key"](source, sink), settings, options=GROUPED) for _ in (1, 2)
    ]
    wanted = {f"0_{number}" for number in range(PARTITIONS)}
    for app in apps:
        until(
            lambda app=app: len(_roles(app.tasks(), "active", "RUNNING")) == PARTITIONS // 2,  # type: ignore[misc]
            "each has its share",
        )
        until(
            lambda app=app: (
                _roles(app.tasks(), "active", "RUNNING")  # type: ignore[misc]
                | _roles(app.tasks(), "standby")
                == wanted
            ),
            "every task is here in some role",
        )
    cluster.wait_until_consumed(settings["application_id"], source)
    expected = dict(Counter(key.decode() for key, _ in records))

    def counted(app: KafkaStreams, *, stale: bool) -> dict[str, int]:
        return {key: row.value for key, row in app.store(STORE, stale=stale).all()}

    for app in apps:
        until(lambda app=app: counted(app, stale=True) == expected, "copies follow")  # type: ignore[misc]
        until(
            lambda app=app: set(app.local_store_lags()[STORE]) == set(range(PARTITIONS)),  # type: ignore[misc]
            "the lag of each is known",
        )
    own = [counted(app, stale=False) for app in apps]
    assert own[0] | own[1] == expected
    assert not own[0].keys() & own[1].keys()


def test_an_added_thread_is_a_separate_member(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], topics: tuple[str, str]
) -> None:
    source, sink = topics
    records = [_record(number) for number in range(1_000)]
    cluster.send(source, records)
    app = start_app(JOBS["count_by_key"](source, sink), config | QUICK, options=GROUPED)
    assert app.remove_stream_thread() is None, "the last one is ended by close"
    name = app.add_stream_thread()

    def shares() -> list[int]:
        return [len(thread.worker.tasks) for thread in app._threads if thread.worker]

    until(lambda: shares() == [2, 2], "each thread has half")
    until(lambda: len(_roles(app.tasks(), "active", "RUNNING")) == PARTITIONS, "all run")
    assert app.remove_stream_thread() == name
    until(lambda: shares() == [PARTITIONS], "the first has all again")
    cluster.wait_until_consumed(config["application_id"], source)
    assert cluster.values_by_key(sink) == _updates(records)


def _has(app: KafkaStreams, key: str) -> bool:
    try:
        return app.store("counts").get(key) is not None
    except InvalidStateStoreError:  # no task of it runs there yet
        return False


def test_every_process_finds_the_owner_of_each_key(
    cluster: Cluster, config: dict[str, Any], topics: tuple[str, str], start_app: StartApp
) -> None:
    source, _ = topics
    keys = [f"key-{number}" for number in range(40)]
    cluster.send(source, [(key.encode(), b"x") for key in keys])
    builder = StreamsBuilder()
    builder.stream(source, key_serde=str, value_serde=str).group_by_key().count(store="counts")
    apps: dict[HostInfo, KafkaStreams] = {}
    for name in ("a", "b"):
        own = {
            "application_server": f"{name}:80",
            "num_standby_replicas": 1,
            "state_dir": config["state_dir"] + name,
        }
        apps[HostInfo(name, 80)] = start_app(builder, config | QUICK | own, options=GROUPED)

    def places(app: KafkaStreams) -> dict[str, KeyQueryMetadata]:
        return {key: app.query_metadata_for_key("counts", key, str) for key in keys}

    def having(key: str) -> set[HostInfo]:
        return {host for host, app in apps.items() if _has(app, key)}

    def shared() -> bool:
        first, second = (places(app) for app in apps.values())
        return (
            first == second
            and {place.active_host for place in first.values()} == set(apps)
            and all(place.standby_hosts == set(apps) - having(key) for key, place in first.items())
            and all(having(key) == {place.active_host} for key, place in first.items())
        )

    until(shared, "each has its keys, and copies of the other's")
    first, second = apps.values()
    assert {place.partition for place in places(first).values()} == set(range(PARTITIONS))
    everything = first.metadata_for_all_clients()
    assert everything == second.metadata_for_all_clients()
    assert [each.host_info for each in everything] == list(apps)
    assert {each.state_store_names for each in everything} == {frozenset({"counts"})}
    inputs = [each.topic_partitions for each in everything]
    assert [each.standby_topic_partitions for each in everything] == inputs[::-1]
    assert sorted(part.partition for input_ in inputs for part in input_) == list(range(PARTITIONS))
    assert first.close(timeout=int(PATIENCE_S * 1000))
    alone = HostInfo("b", 80)
    until(
        lambda: {each.active_host for each in places(second).values()} == {alone},
        "the other has all",
    )
    assert [client.host_info for client in second.metadata_for_all_clients()] == [alone]
    with pytest.raises(StreamsError, match="where keys are is known from start"):
        first.query_metadata_for_key("counts", "key-1", str)
