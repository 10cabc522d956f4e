"""Damaged and forged records in the control topics of a running group."""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import FaultRun, eventually
from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.messages import encode_message
from tidewheel.rebalance.protocol.records import (
    RECORD_BYTES_MAX,
    LeaderClaim,
    TaskRecord,
    encode_record,
    record_key,
)
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic

pytestmark = [pytest.mark.timeout(600), pytest.mark.broker, pytest.mark.slow]

_ROUNDS = 20
_SO_FAR: Final = re.compile(r"\((\d+) such records so far\)")
_HUGE_BYTES: Final = 10_000_000
_HUGE_RECORDS: Final = 20
#: Clients of a process buffer less; the records together have 400 MB.
_MEMORY_MAX: Final = 150_000_000
#: A watchdog logs these of its rejections.
_LOGGED: Final = {*range(1, 11), 100, 1_000}


def _noise(chance: random.Random) -> Iterator[bytes]:
    yield chance.randbytes(chance.randint(1, 200))
    yield b"\x00TW1" + chance.randbytes(30)
    yield b'{"kind":"TELEPATHY","app":"x","member":"m","incarnation":"i"}'
    yield b'{"kind":"TASK","x":' + b"[" * chance.randint(1_000, 50_000)
    yield b"null"
    yield b""


def _damage(run: FaultRun) -> None:
    """Write garbage of each kind into both topics, often."""
    chance = random.Random(34)
    app = run.application_id
    for _ in range(_ROUNDS):
        noise = [(b"noise", each) for each in _noise(chance)]
        for topic in (inbox_topic(app), state_topic(app)):
            run.cluster.send(topic, noise, partition=0)
    huge = [(b"noise", b'{"kind":"BEAT","pad":"' + b"x" * (RECORD_BYTES_MAX + 50_000) + b'"}')]
    for topic in (inbox_topic(app), state_topic(app)):
        run.cluster.send(topic, huge, partition=0)


def _group(run: FaultRun) -> Group:
    return replay(run.trace().records)


def _replay_old_incarnations(run: FaultRun, incarnations: set[str]) -> int:
    """Send all messages of ended incarnations again, and those of the others under another name."""
    messages = run.trace().messages
    replayed = [each for each in messages if each.incarnation in incarnations]
    values = [encode_message(each) for each in replayed]
    foreign = [json.dumps(json.loads(each) | {"app": "payments"}).encode() for each in values]
    run.cluster.send(
        inbox_topic(run.application_id),
        [(b"replay", each) for each in values + foreign],
        partition=0,
    )
    return len(replayed)


def _deposed(run: FaultRun) -> list[tuple[bytes, bytes]]:
    """Return decisions of a leader that never was, of lower epochs."""
    group = _group(run)
    epoch = group.leader_epoch - 1
    claim = LeaderClaim(leader_epoch=epoch, leader="evil", previous_epoch=epoch - 1)
    grant = TaskRecord(
        leader_epoch=epoch,
        task="0_0",
        phase="RUNNING",
        task_epoch=group.states[TaskId(0, 0)].task_epoch + 1,
        owner="evil-1",
    )
    return [(record_key(each), encode_record(each)) for each in (claim, grant)]


def _alarms(run: FaultRun, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    servers = ["--bootstrap-servers", run.cluster.bootstrap_servers]
    capsys.readouterr()
    code = main(["status", run.application_id, *servers, "--json"])
    assert code in (ExitCode.OK, ExitCode.FAILED)
    alarms: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["alarms"]
    return alarms


def _damaged_topics(run: FaultRun, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Return the control topics that an alarm of `status` calls damaged."""
    topics = {state_topic(run.application_id), inbox_topic(run.application_id)}
    return {topic for topic in topics if _unreadable(run, capsys, topic)}


def _unreadable(run: FaultRun, capsys: pytest.CaptureFixture[str], topic: str) -> list[str]:
    """Return the alarms of `status` on unreadable records of a control topic."""
    texts = [each["text"] for each in _alarms(run, capsys) if each["name"] == "unreadable-record"]
    return [text for text in texts if f"{topic}-0 offset" in text]


def _assert_logged_sparsely(run: FaultRun) -> None:
    for worker in run.workers.values():
        logged = [int(each) for each in _SO_FAR.findall(worker.log)]
        assert {*range(1, 11)} <= {*logged} <= _LOGGED, worker.name
        assert len(logged) == len({*logged}), worker.name
        assert "Traceback" not in worker.log


def _peak_bytes(process: psutil.Process) -> int:
    """Return the most memory that a process has ever had in use."""
    status = Path("/proc", str(process.pid), "status").read_text(encoding="ascii")
    (line,) = [each for each in status.splitlines() if each.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@pytest.mark.fault("34")
def test_control_records_of_10_MB_change_nothing_and_are_not_kept(
    make_run: MakeRun,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[..., None],
) -> None:
    run = make_run()
    run.begin()
    state, inbox = state_topic(run.application_id), inbox_topic(run.application_id)
    owners, before = run.owners(), _group(run)
    processes = [each for worker in run.workers.values() for each in worker.processes()]
    peaks = {each: _peak_bytes(each) for each in processes}
    # JSON of a known kind, and no JSON: a reader could decode the first.
    claim = b'{"kind":"LEADER_CLAIM","leader_epoch":99,"leader":"evil","previous_epoch":98,"pad":"'
    values = [claim + b"x" * _HUGE_BYTES + b'"}', b"\xff" * _HUGE_BYTES]
    limits = {"max_message_bytes": "12000000", "segment_bytes": "100000000"}
    for topic in (inbox, state):
        # `verify` reads the whole inbox: its retention of 64 MiB must not end messages.
        run.cluster.configure(topic, **limits, retention_bytes="-1")
        for number in range(_HUGE_RECORDS):
            run.cluster.send(topic, [(b"noise", values[number % 2])], partition=0)

    # Of the inbox, status reads the last seconds only; the members read it as it is written.
    logs = [worker.log_path for worker in run.workers.values()]
    run.until(
        lambda: all(f"skipped {inbox}-0 offset" in log.read_text() for log in logs),
        "each worker has skipped records of the inbox",
    )
    run.until(lambda: _unreadable(run, capsys, state), "status names the state topic")
    run.until_progress()
    assert run.owners() == owners, "no task moves"
    after = _group(run)
    assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch)
    assert {task: each.task_epoch for task, each in after.states.items()} == {
        task: each.task_epoch for task, each in before.states.items()
    }
    _assert_logged_sparsely(run)
    grown = max(_peak_bytes(each) - peak for each, peak in peaks.items())
    record_property("memory_mb", grown / 1e6)
    assert grown < _MEMORY_MAX
    run.verify()


@pytest.mark.fault("34")
def test_damaged_control_records_change_nothing(
    make_run: MakeRun,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[..., None],
) -> None:
    run = make_run()
    run.begin()
    run.kill("c")
    run.until_owned()
    run.start("c")
    run.until_shared()
    ended = run.trace().ended()
    assert ended
    owners, before = run.owners(), _group(run)

    deposed = _deposed(run)
    run.forged |= {value for _, value in deposed}
    assert _replay_old_incarnations(run, ended)
    run.cluster.send(state_topic(run.application_id), deposed, partition=0)
    _damage(run)

    both = {state_topic(run.application_id), inbox_topic(run.application_id)}
    record_property(
        "recovery_s",
        eventually(lambda: _damaged_topics(run, capsys) == both, "status names both topics"),
    )
    record_property("times", 2 * _ROUNDS * len(list(_noise(random.Random(1)))))
    run.until_progress()
    assert run.owners() == owners, "no task moves"
    after = _group(run)
    assert after.leader == run.trace().claim().leader
    assert {task: each.task_epoch for task, each in after.states.items()} == {
        task: each.task_epoch for task, each in before.states.items()
    }
    _assert_logged_sparsely(run)
    run.verify()
