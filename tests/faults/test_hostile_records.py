"""Damaged and forged records in the control topics of a running group."""

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

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
