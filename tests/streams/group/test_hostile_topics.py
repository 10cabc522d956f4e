"""Commands answer for topics with arbitrary bytes."""

import contextlib
import json
from dataclasses import asdict, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.damage import bounded
from tests.rebalance.leader.group_logs import T, two_members
from tests.rebalance.leader.hostile import hostile, originals, settled_table
from tests.rebalance.leader.round_table import RoundTable
from tests.streams.group.fake_group import APP, FakeConnection, FakeGroup, use
from tests.streams.group.test_discovery import SPEC
from tidewheel.rebalance.inspect.history import account, episode_text
from tidewheel.rebalance.model import TaskId, TaskShape, TopicPartition
from tidewheel.rebalance.protocol.group import apply, replay
from tidewheel.rebalance.protocol.records import decode_record, encode_record
from tidewheel.streams.cli.app import main
from tidewheel.streams.cli.commands.drain import find_member
from tidewheel.streams.cli.group_access import GroupAccess
from tidewheel.streams.cli.group_view import body_lines, head_lines
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.group.discovery import all_clients
from tidewheel.streams.group.inbox import inbox_back_ms
from tidewheel.streams.group.range_map import progress_of
from tidewheel.streams.group.recovery import (
    GroupProgram,
    RecoveryFacts,
    plan_recovery,
    recovered_log,
)
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

pytestmark = pytest.mark.fault("DOORS")

RECORDS, MESSAGES = originals()
CONFIG = StreamsConfig(application_id=APP)


def _group(records: list[bytes], messages: list[bytes]) -> FakeGroup:
    """Return the topics of a group that ran, with these values added."""
    group = FakeGroup()
    for topic, values in ((state_topic(APP), records), (inbox_topic(APP), messages)):
        for value in values:
            group.broker.send(topic, value, b"k", timestamp=T)
    return group


def _mixed(values: tuple[bytes, ...]) -> st.SearchStrategy[list[bytes]]:
    forged = st.lists(st.tuples(st.integers(0, len(values)), hostile(values)), max_size=4)

    def mix(rows: list[tuple[int, bytes]]) -> list[bytes]:
        found = list(values)
        for at, value in rows:
            found.insert(at, value)
        return found

    return forged.map(mix)


@settings(max_examples=25)
@given(_mixed(RECORDS), _mixed(MESSAGES))
def test_observers_answer_for_any_content_of_the_topics(
    records: list[bytes], messages: list[bytes]
) -> None:
    group = _group(records, messages)
    access = GroupAccess(CONFIG, FakeConnection(group.broker), lambda: T)
    access.shows_ranges = True
    with bounded():
        status = access.read_status()
        json.dumps(status.to_dict())
        lines = [*head_lines(status, 80), *body_lines(status, 80)]
    assert max(line.cell_len for line in lines) <= 80
    assert all(alarm.text.isprintable() for alarm in status.alarms)
    episodes = account(FakeConnection(group.broker).topics.log())
    json.dumps([asdict(each) for each in episodes])
    assert all(episode_text(each, str) for each in episodes)
    assert inbox_back_ms(access.group) <= 2 * 86_400_000
    all_clients(access.group, SPEC, APP)
    for name in ("a", "nobody"):
        with contextlib.suppress(StreamsError):  # no member, or several, have this name
            find_member(access.group, name)


_IDS = st.sampled_from(
    [
        "shop-fixed-0",
        f"shop-{'0a' * 16}-0",
        "payments-prod-0",
        "shop-leader",
        "shop-prod-0",
        "",
        "shop-",
    ]
)
_NUMBERS = st.integers(0, 2**70)


@settings(max_examples=25)
@given(
    _mixed(RECORDS),
    _mixed(MESSAGES),
    st.tuples(_IDS, _NUMBERS, st.integers(0, 2**40), st.integers(0, 2**34)),
)
def test_recovery_rebuilds_a_group_from_any_remaining_content(
    records: list[bytes], messages: list[bytes], commit: tuple[str, int, int, int]
) -> None:
    name, task_epoch, ahead, first_hash = commit
    vector = Vector((0, max(first_hash, 1)), (5, 5 + ahead))
    progress = Progress(
        task_epoch=task_epoch,
        transactional_id=name,
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=vector,
    )
    orders = TopicPartition("orders", 0)
    committed = {orders: CommittedOffset(5, progress.encode())}
    group = _group(records, messages)
    access = GroupAccess(CONFIG, FakeConnection(group.broker), lambda: T)
    access.read_existing_topics(whole=True)
    task = TaskId(0, 0)
    facts = RecoveryFacts(
        application_id=APP,
        tasks={task: TaskShape(stateful=True)},
        inputs={orders: task},
        committed=committed,
        group=access.group,
        named=frozenset(access.inbox.transactional_ids),
        program=GroupProgram(topology_hash="h", assignor="sticky"),
    )
    plan = plan_recovery(facts)
    assert {"shop-fixed-0", f"shop-{'0a' * 16}-0"}.issuperset(plan.transactional_ids)
    assert plan.epoch > access.group.leader_epoch
    assert all(plan.epoch > state.task_epoch for state in access.group.states.values())
    log = [decode_record(encode_record(each)) for each in recovered_log(facts, plan.epoch, {})]
    assert None not in log
    rebuilt = replay(each for each in log if each is not None)
    assert rebuilt.states[task].task_epoch == plan.epoch
    onwards = replay((each for each in log if each is not None), access.group)
    assert onwards.leader_epoch == plan.epoch, (
        "whoever reads the old log before it takes the new one"
    )
    progress_of(APP, committed)


def test_an_alarm_names_skipped_records_for_an_hour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = two_members()
    group = FakeGroup()
    group.write(book)
    offset = len(book.entries)
    group.broker.send(
        state_topic(APP),
        b'{"kind":"TASK","leader_epoch":1,"task":"x","phase":"RUNNING","task_epoch":1}',
        timestamp=book.now_ms,
    )
    group.broker.send(inbox_topic(APP), b"noise", timestamp=book.now_ms)
    group.beats(book.now_ms, "a", "b")
    use(monkeypatch, group, book.now_ms)
    assert main(["status", APP, "--json"]) == ExitCode.FAILED
    alarms = json.loads(capsys.readouterr().out)["alarms"]
    assert [each["name"] for each in alarms] == ["unreadable-record"] * 2
    assert f"shop-group-state-0 offset {offset}, field task" in alarms[0]["text"]
    assert "shop-group-inbox-0 offset 0, field message" in alarms[1]["text"]
    assert main(["group", "history", APP]) == ExitCode.OK
    later = book.now_ms + 3_600_001
    group.beats(later, "a", "b")
    use(monkeypatch, group, later)
    capsys.readouterr()
    assert main(["status", APP, "--json"]) == ExitCode.OK


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"kind": "MEMBER", "member": "b", "incarnation": "b-9", "phase": "ACTIVE"}, "member b"),
        ({"kind": "TASK", "task": "0_0", "phase": "RUNNING", "owner": "x", "task_epoch": 9}, "0_0"),
        ({"kind": "GROUP", "held": "bootstrap: never"}, "bootstrap: never"),
    ],
)
def test_recovery_is_needed_if_the_log_contradicts_itself(row: dict[str, Any], named: str) -> None:
    facts = RecoveryFacts(
        application_id=APP,
        tasks={},
        inputs={},
        committed={},
        group=settled_table(RoundTable).group,
        topic_ids={state_topic(APP): "1", inbox_topic(APP): "2"},
        program=GroupProgram(topology_hash="h", assignor="sticky"),
    )
    assert not plan_recovery(facts).needed
    forged = decode_record(json.dumps({**row, "leader_epoch": facts.group.leader_epoch}).encode())
    assert forged is not None
    plan = plan_recovery(replace(facts, group=apply(facts.group, forged)))
    assert any(named in reason for reason in plan.needed)
    assert plan.epoch > facts.group.leader_epoch


def test_recovery_is_needed_if_a_task_may_only_start_beyond_the_end_of_its_input() -> None:
    group = settled_table(RoundTable).group
    task, orders = TaskId(0, 0), TopicPartition("orders", 0)
    facts = RecoveryFacts(
        application_id=APP,
        tasks={task: TaskShape(stateful=True)},
        inputs={orders: task},
        committed={},
        group=group,
        topic_ids={state_topic(APP): "1", inbox_topic(APP): "2"},
        ends={orders: 50},
        program=GroupProgram(topology_hash="h", assignor="sticky"),
    )
    assert not plan_recovery(facts).needed
    state = group.states[task]
    for floor in (50, 51):
        raised = msgspec.structs.replace(
            state, leader_epoch=group.leader_epoch, input={"orders-0": floor}
        )
        plan = plan_recovery(replace(facts, group=apply(group, raised)))
        assert bool(plan.needed) is (floor > 50)
    log = recovered_log(facts, plan.epoch, {})
    assert not replay(log).states[task].input
