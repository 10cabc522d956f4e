"""Foreign writers in a group's topics: the group survives them, also after restarts."""

import json
import secrets
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.cluster import until
from tests.integration.groups.test_groups_basic import PARTITIONS, Group, group, topics
from tests.integration.processes import WorkerProcess, owned
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.protocol.decoding import Rejection
from tidewheel.rebalance.protocol.field_types import counter_max
from tidewheel.rebalance.protocol.group import Group as GroupState
from tidewheel.rebalance.protocol.group import replay
from tidewheel.rebalance.protocol.records import decode_record, read_record
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.streams.kafka.clients import KafkaClients
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress

__all__ = ["group", "topics"]

#: A foreign producer's id; no application here has its prefix as id.
FOREIGN = "payments-prod-0"
_PROGRAM = """
from tests.integration.programs.jobs import JOBS

topology = JOBS["count_by_key"]({source!r}, {sink!r}).build()
"""


def _state(group: Group, app: str) -> GroupState:
    records = (decode_record(record.value) for record in group.cluster.read(state_topic(app)))
    return replay(record for record in records if record is not None)


def _epoch(group: Group, app: str) -> int:
    return _state(group, app).leader_epoch


def _forged_log(epoch: int) -> list[tuple[str, bytes]]:
    """Return records under the leader's epoch with the keys of real ones."""
    task = {
        "kind": "TASK",
        "leader_epoch": epoch,
        "task": "0_0",
        "phase": "RUNNING",
        "task_epoch": 1,
        "owner": "x",
    }
    member = {
        "kind": "MEMBER",
        "leader_epoch": epoch,
        "member": "m",
        "incarnation": "i",
        "phase": "ACTIVE",
    }
    step = {"kind": "STEP", "leader_epoch": epoch, "group_epoch": 1, "step_epoch": 9}
    rows: list[tuple[str, dict[str, Any]]] = [
        ("task/x", task | {"task": "x"}),
        ("task/0_1", task | {"task": "../../etc"}),
        ("task/0_0", task | {"phase": "ASLEEP"}),
        ("task/0_2", task | {"task_epoch": -1}),
        ("member/m/i", member | {"phase": "GHOST"}),
        ("member/m/i", member | {"threads": 0}),
        (
            "group",
            {"kind": "GROUP", "leader_epoch": epoch, "tasks": {"x": {}}, "assignor": "evilmod:x"},
        ),
        ("group", {"kind": "GROUP", "leader_epoch": epoch, "partitions": {"in": 10**9}}),
        (
            "target",
            {"kind": "TARGET", "leader_epoch": epoch, "group_epoch": 9, "owners": {"x": "m"}},
        ),
        ("step", step | {"learners": {"x": ["i", 1]}}),
        ("step", step | {"parked": ["../../etc"]}),
        (
            "claim",
            {"kind": "LEADER_CLAIM", "leader_epoch": 2**50, "leader": "evil", "previous_epoch": 1},
        ),
    ]
    records = [(f"{epoch}/{key}", json.dumps(row).encode()) for key, row in rows]
    assert all(isinstance(read_record(each), Rejection) for _, each in records[:-1])
    return [*records, (f"{epoch}/target", b"\xff\xfe"), (f"{epoch}/step", b"[" * 50_000)]


def _forged_inbox(app: str) -> list[bytes]:
    sender = {"app": app, "member": "evil", "incarnation": "evil-1"}
    join = sender | {
        "kind": "JOIN",
        "transactional_ids": [f"{app}-evil-1-0"],
        "host": "h",
        "pid": 1,
        "process_id": "p",
        "tasks": [],
    }
    rows = [
        join | {"threads": 0},
        join | {"tasks": [{"task": "../../etc"}]},
        join | {"transactional_ids": [FOREIGN]},
        sender | {"kind": "LEADER_BEAT", "leader_epoch": 2**52, "seq": 1},
        sender | {"kind": "BEAT", "seq": 2**70},
        sender | {"kind": "TELEPATHY"},
    ]
    return [json.dumps(row).encode() for row in rows] + [b"\xff", b""]


def _valid_lie(epoch: int) -> tuple[str, bytes]:
    """Return a record that every reader accepts; it selects a foreign assignor."""
    row = {
        "kind": "GROUP",
        "leader_epoch": epoch,
        "assignor": "evilmod:x",
        "tasks": {f"0_{n}": {"stateful": True} for n in range(PARTITIONS)},
    }
    return f"{epoch}/group", json.dumps(row).encode()


def _contradictions(group: Group, app: str, survivor: set[int]) -> list[tuple[str, bytes]]:
    """Return well-formed false records: a second incarnation, and owners outside the group."""
    state = _state(group, app)
    epoch = state.leader_epoch
    own, *_ = sorted(survivor)
    other = next(number for number in range(PARTITIONS) if number not in survivor)
    owner = state.states[TaskId(0, own)]
    rows: dict[str, dict[str, Any]] = {
        f"member/{owner.member}/{'b9' * 16}": {
            "kind": "MEMBER",
            "member": owner.member,
            "incarnation": "b9" * 16,
            "phase": "ACTIVE",
        },
        f"task/0_{own}": {
            "kind": "TASK",
            "task": f"0_{own}",
            "phase": "RUNNING",
            "task_epoch": counter_max(epoch),
            "owner": "ghost",
        },
        f"task/0_{other}": msgspec.to_builtins(state.states[TaskId(0, other)])
        | {"kind": "TASK", "phase": "FENCE_WAIT"},
    }
    records = [
        (f"{epoch}/{key}", json.dumps(row | {"leader_epoch": epoch}).encode())
        for key, row in rows.items()
    ]
    assert not any(isinstance(read_record(each), Rejection) for _, each in records)
    return records


def _write(group: Group, topic: str, rows: list[tuple[str, bytes]]) -> None:
    group.cluster.send(topic, [(key.encode(), value) for key, value in rows], partition=0)


def _attack(group: Group, app: str) -> None:
    _write(group, state_topic(app), _forged_log(_epoch(group, app)))
    _write(group, inbox_topic(app), [("evil", each) for each in _forged_inbox(app)])


def _status(group: Group, app: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["status", app, "--bootstrap-servers", group.cluster.bootstrap_servers, "--json"])
    assert code in (ExitCode.OK, ExitCode.FAILED)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def _leading(group: Group, app: str, workers: list[WorkerProcess]) -> WorkerProcess:
    """Return the worker whose watchdog leads: it has the tasks of the leader's member."""
    state = _state(group, app)
    (leader,) = [each for each in state.live().values() if each.process_id == state.leader]
    tasks = {task.partition for task in state.owned(leader.incarnation)}
    (worker,) = [worker for worker in workers if owned(worker) == tasks]
    return worker


def _commit_in_the_name_of(foreign: str, group: Group, clients: KafkaClients, app: str) -> None:
    """Commit the same offsets with metadata that names a foreign application's producer."""
    committed = group.cluster.admin.committed(app, None, stable=True)
    forged: dict[TopicPartition, CommittedOffset] = {}
    for partition, (offset, metadata) in committed.items():
        progress = Progress.decode(metadata, committed_offset=offset)
        assert progress is not None
        named = msgspec.structs.replace(progress, transactional_id=foreign, task_epoch=0)
        forged[partition] = CommittedOffset(offset, named.encode())
    attacker = clients.transactional_producer(f"{app}-attacker", 60_000)
    attacker.init()
    attacker.begin()
    attacker.commit(app, forged)
    attacker.close()


@pytest.mark.fault("34")
@pytest.mark.fault("50")
def test_a_group_survives_any_record_in_its_topics(
    group: Group, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    app, servers = str(group.config["application_id"]), group.cluster.bootstrap_servers
    workers = [group.start("first"), group.start("second")]
    group.until_shared(*workers)
    _attack(group, app)

    def is_alarmed() -> bool:
        texts = [
            alarm["text"]
            for alarm in _status(group, app, capsys)["alarms"]
            if alarm["name"] == "unreadable-record"
        ]
        return any(f"{state_topic(app)}-0 offset" in text and "field" in text for text in texts)

    until(is_alarmed, "status names what is skipped")
    for command in (["group", "history", app], ["top", app, "--count", "1"]):
        assert main([*command, "--bootstrap-servers", servers]) == ExitCode.OK

    # Well-formed and false. The leader dies right after it, so its successor starts from it.
    leading = _leading(group, app, workers)
    (survivor,) = [worker for worker in workers if worker is not leading]
    lies = _contradictions(group, app, owned(survivor))
    _write(group, state_topic(app), [_valid_lie(_epoch(group, app)), *lies])
    leading.kill_watchdog()
    leading.kill()
    group.until_shared(survivor)
    _attack(group, app)
    assert survivor.stop() == ExitCode.OK, survivor.log[-4000:]

    # No reader of the earlier log is left, and the forged records are the last ones.
    _attack(group, app)
    program = tmp_path / f"program_{secrets.token_hex(4)}.py"
    program.write_text(_PROGRAM.format(source=group.source, sink=group.sink), encoding="utf-8")
    target = (f"{program}:topology", "--application-id", app)
    recover = ["group", "recover", *target, "--execute", "--bootstrap-servers", servers]
    assert main(recover) == ExitCode.OK
    assert _state(group, app).about.assignor in {"", "sticky"}, "of no forged record"
    again = group.start("again")
    group.until_shared(again)
    group.check()
    assert again.stop() == ExitCode.OK, again.log[-4000:]
    assert not any("Traceback" in each.log for each in (*workers, again))
    assert _status(group, app, capsys)["assignor"] == "sticky"
    assert len(_state(group, app).members) == 0


@pytest.mark.fault("50")
def test_a_producer_that_metadata_names_is_fenced_only_if_it_is_the_applications(
    group: Group,
) -> None:
    app, servers = str(group.config["application_id"]), group.cluster.bootstrap_servers
    clients = KafkaClients(bootstrap_servers=servers, application_id="payments")
    foreign = clients.transactional_producer(FOREIGN, 60_000)
    foreign.init()
    for number, fixed in enumerate((True, True, False)):
        # Workers refuse offsets with a foreign name otherwise.
        worker = group.start(f"worker-{number}", fixed=fixed, accept_offsets=True)
        worker.wait_until_running()
        if not number:
            group.stop_feeding()
        assert worker.stop() == ExitCode.OK, worker.log[-4000:]
        _commit_in_the_name_of(FOREIGN, group, clients, app)
    foreign.begin()
    foreign.commit("payments", {TopicPartition(group.source, 0): CommittedOffset(0, "")})
    foreign.close()
    group.check()
