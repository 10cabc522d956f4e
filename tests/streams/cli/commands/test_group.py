"""`tidewheel group`: history, recovery and rest."""

import json
import secrets
from pathlib import Path

import pytest

from tests.fakes.clients import FakeAdmin, FakeChangelogReader
from tests.rebalance.leader.group_logs import LogBook, T, producer_id, scale_out, two_members
from tests.rebalance.leader.round_table import join
from tests.streams.group.fake_group import APP, FakeGroup, GroupAdmin, use
from tidewheel.rebalance.inspect.describe import GroupPhase, fold_log
from tidewheel.rebalance.model import Shard, TaskId, TaskPhase, TopicPartition
from tidewheel.rebalance.protocol.group import replay
from tidewheel.rebalance.protocol.messages import Beat, TransactionalIdWanted
from tidewheel.rebalance.protocol.records import AnyRecord, LeaderClaim, decode_record
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.group.topics import GroupTopics
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.tasks.kafka.internal_topics import offsets_group
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

PROGRAM = """
from tidewheel import StreamsBuilder

builder = StreamsBuilder()
builder.stream("orders", key_serde=str, value_serde=str).group_by_key().count(store="totals")
topology = builder.build()
config = {"application_id": "shop"}
"""


def _progress(epoch: int, transactional_id: str, offset: int = 5) -> CommittedOffset:
    progress = Progress(
        task_epoch=epoch,
        transactional_id=transactional_id,
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=Vector.at(offset),
    )
    return CommittedOffset(offset, progress.encode())


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / f"shop_{secrets.token_hex(4)}.py"  # a module is loaded once per name
    file.write_text(PROGRAM, encoding="utf-8")
    return f"{file}:topology"


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> FakeGroup:
    """A group with commits at epochs 3 and 17, without topics."""
    group = FakeGroup(topics=False)
    group.broker.create_topic("orders", 2)
    group.broker.groups[APP] |= {
        TopicPartition("orders", 0): _progress(3, producer_id("a", 1, 0)),
        TopicPartition("orders", 1): _progress(17, producer_id("b", 4, 2)),
        TopicPartition("other", 0): _progress(90, "shop-old-0"),
    }
    use(monkeypatch, group, T)
    return group


def _log_of(group: FakeGroup) -> list[object]:
    return [decode_record(record.value) for record in group.broker.records(state_topic(APP))]


def test_N5_history_lists_the_events(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = FakeGroup()
    group.write(scale_out())
    use(monkeypatch, group, T)
    assert main(["group", "history", "shop", "--last", "1"]) == ExitCode.OK
    assert capsys.readouterr().out == (
        "2 earlier episodes left out; --last 0 shows all.\n"
        "2026-11-21 12:00:02.000Z  1 task granted, 3 stayed, 4.2 s\n"
        "  +0 ms     h-c (c) joined\n"
        "  +200 ms   target 2: c joined\n"
        "  +4.2 s    0_1: h-b (b) → h-c (c) by learner (planted 4.0 s before), 12 ms without an owner, epoch 2\n"
    )
    assert main(["group", "history", "shop", "--last", "0"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("2026-11-21 12:00:00.000Z  p1 leads")


def test_history_is_a_line_of_json_per_episode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = FakeGroup()
    group.write(scale_out())
    use(monkeypatch, group, T)
    assert main(["group", "history", "shop", "--json"]) == ExitCode.OK
    episodes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(episodes) == 3
    (move,) = episodes[-1]["moves"]
    assert (move["task"], move["source"], move["target"], move["how"], move["pause_ms"]) == (
        "0_1",
        "b",
        "c",
        "learner",
        12,
    )


def test_an_empty_history_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeGroup(), T)
    assert main(["group", "history", "shop"]) == ExitCode.OK
    assert capsys.readouterr().out == "The log has no events yet.\n"
    assert main(["group", "history", "shop", "--last", "-1"]) == ExitCode.USAGE


def test_recovery_is_shown_first(
    lost: FakeGroup, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["group", "recover", program, "--json"]) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out)
    assert plan == {
        "application_id": "shop",
        "needed": [
            "topic shop-group-state does not exist",
            "topic shop-group-inbox does not exist",
        ],
        "create_topics": ["shop-group-state", "shop-group-inbox"],
        "fence": [producer_id("a", 1, 0), producer_id("b", 4, 2)],
        "epoch": 18,
        "tasks": ["0_0", "0_1"],
        "refusals": [],
        "executed": False,
    }
    assert set(lost.broker.topics) == {"orders"}
    assert lost.broker.fenced == []


def test_text_output_shows_the_plan_and_the_next_step(
    lost: FakeGroup,
    program: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["group", "recover", program]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "• topic shop-group-state does not exist" in said
    assert "claim epoch 18; 2 tasks without an owner" in said
    assert "Nothing was touched. Add --execute to do it." in said
    assert main(["group", "recover", program, "--execute"]) == ExitCode.OK
    assert "Recovery of shop: done" in capsys.readouterr().out
    assert main(["group", "recover", program]) == ExitCode.OK
    assert "Nothing to recover" in capsys.readouterr().out
    assert lost.broker.fenced == [producer_id("a", 1, 0), producer_id("b", 4, 2)]


def test_H24_a_group_that_was_set_up_for_another_program_is_set_up_again(
    lost: FakeGroup, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with_another = (program, "--set", "task_assignor=round_robin")
    assert main(["group", "recover", *with_another, "--execute"]) == ExitCode.OK
    capsys.readouterr()
    assert main(["group", "recover", program, "--execute", "--json"]) == ExitCode.OK
    (reason,) = json.loads(capsys.readouterr().out)["needed"]
    assert "with task_assignor 'round_robin'" in reason
    records = [each for each in _log_of(lost) if isinstance(each, AnyRecord)]
    group = replay(records)
    assert (group.about.assignor, group.about.pinned) == ("sticky", True)
    assert len(group.about.topology_hash) == 16
    assert main(["group", "recover", program, "--json"]) == ExitCode.OK
    assert not json.loads(capsys.readouterr().out)["needed"]


def test_recovery_starts_above_every_epoch_with_all_producers_fenced(
    lost: FakeGroup, program: str
) -> None:
    """H24: no epoch is used twice, and members accept the log."""
    assert main(["group", "recover", program, "--execute"]) == ExitCode.OK
    assert lost.broker.fenced == [producer_id("a", 1, 0), producer_id("b", 4, 2)]
    reader = GroupTopics(
        APP,
        GroupAdmin(lost.broker),
        FakeChangelogReader(lost.broker),
        FakeChangelogReader(lost.broker),
    )
    fold = fold_log(reader.log())
    assert (fold.group.leader_epoch, fold.phase) == (18, GroupPhase.EMPTY)
    assert dict(fold.group.topic_ids) == dict(reader.topic_ids())
    assert {
        task: (state.phase, state.task_epoch, state.owner)
        for task, state in fold.group.states.items()
    } == {TaskId(0, number): (TaskPhase.RELEASED, 18, None) for number in (0, 1)}
    assert fold.group.tasks[TaskId(0, 0)].changelogs == ("shop-totals-changelog",)


def test_K8_recovery_of_shards_reads_their_groups_and_writes_version_2(
    lost: FakeGroup, program: str
) -> None:
    sharded = (program, "--set", "partition_shards=2")
    at = TopicPartition("orders", 1)
    for number, epoch in enumerate((30, 25)):
        shards_group = offsets_group(APP, Shard(number, 2))
        lost.broker.groups[shards_group] = {at: _progress(epoch, producer_id("c", 1, number))}
    assert main(["group", "recover", *sharded, "--execute"]) == ExitCode.OK
    assert lost.broker.fenced == [
        producer_id("c", 1, 0),
        producer_id("c", 1, 1),
    ]
    records = _log_of(lost)
    assert all(records), "readers accept each record"
    group = replay([each for each in records if isinstance(each, AnyRecord)])
    assert (group.about.group_version, group.about.shards, group.leader_epoch) == (2, 2, 31)
    ids = {TaskId(0, partition, shard) for partition in (0, 1) for shard in Shard.all_of(2)}
    assert set(group.tasks) == set(group.states) == ids
    assert {(state.phase, state.task_epoch) for state in group.states.values()} == {
        (TaskPhase.RELEASED, 31)
    }
    assert main(["group", "recover", program, "--json"]) == ExitCode.OK


def test_a_commit_before_the_fence_counts(
    lost: FakeGroup, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FakeAdmin.fence

    def fence(admin: FakeAdmin, transactional_ids: list[str]) -> None:
        lost.broker.groups[APP][TopicPartition("orders", 0)] = _progress(
            40, producer_id("c", 1, 0), 9
        )
        real(admin, transactional_ids)

    monkeypatch.setattr(FakeAdmin, "fence", fence)
    assert main(["group", "recover", program, "--execute"]) == ExitCode.OK
    assert lost.broker.fenced == [
        producer_id("a", 1, 0),
        producer_id("b", 4, 2),
        producer_id("c", 1, 0),
    ]
    claim = _log_of(lost)[0]
    assert isinstance(claim, LeaderClaim)
    assert claim.leader_epoch == 41


def test_H24_a_requested_id_without_a_commit_is_fenced_too(
    lost: FakeGroup, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lost.broker.create_topic(inbox_topic(APP))
    first, second = producer_id("d"), producer_id("d", 1, 1)
    incarnation = first.split("-")[1]
    asked = TransactionalIdWanted(
        app=APP, member="d", incarnation=incarnation, number=1, transactional_id=second
    )
    joined = join("d", incarnation=incarnation, transactional_ids=(first,))
    strange = join("e", incarnation="prod", transactional_ids=("shop-prod-0",))
    lost.hear(T - 3_000_000, joined, asked, strange)
    assert main(["group", "recover", program, "--json"]) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out)
    assert plan["fence"] == [
        producer_id("a", 1, 0),
        producer_id("b", 4, 2),
        producer_id("d", 1, 0),
        producer_id("d", 1, 1),
    ]


def test_recovery_is_refused_while_members_are_alive(
    lost: FakeGroup, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lost.broker.create_topic(inbox_topic(APP))
    lost.hear(T - 500, Beat(app=APP, member="a", incarnation="a-1", seq=4))
    assert main(["group", "recover", program, "--execute"]) == ExitCode.REFUSED
    assert "members of the group are alive: a; stop them first" in capsys.readouterr().err
    assert lost.broker.fenced == []
    assert state_topic(APP) not in lost.broker.topics


def test_a_recreated_topic_needs_recovery(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = FakeGroup()
    group.broker.create_topic("orders", 4)
    book = LogBook()
    book.leader_epoch = 30
    book.write(LeaderClaim(leader_epoch=30, leader="p1", topic_ids={inbox_topic(APP): "ab"}))
    book.about("0_0", "0_1", "0_2", "0_3").member("a")
    group.write(book)
    use(monkeypatch, group, T)
    assert main(["group", "recover", program, "--json"]) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out)
    assert plan["needed"] == ["topic shop-group-inbox is another one than the group was led with"]
    assert (plan["epoch"], plan["fence"]) == (31, [producer_id("a", 1, 0)])


def test_a_log_that_is_behind_the_commits_needs_recovery(
    lost: FakeGroup, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lost.broker.create_topic(state_topic(APP))
    lost.broker.create_topic(inbox_topic(APP))
    lost.write(two_members(("0_0", "0_1")))
    assert main(["group", "recover", program, "--json"]) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out)
    assert plan["needed"] == [
        "orders-0 was committed at task epoch 3, the log knows 1",
        "orders-1 was committed at task epoch 17, the log knows 1",
    ]


@pytest.mark.parametrize("execute", [[], ["--execute"]])
def test_a_healthy_group_is_not_changed(
    execute: list[str],
    program: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    group = FakeGroup()
    group.broker.create_topic("orders", 2)
    group.write(two_members(("0_0", "0_1")))
    group.beats(T, "a", "b")
    use(monkeypatch, group, T)
    assert main(["group", "recover", program, *execute, "--json"]) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out)
    assert (plan["needed"], plan["executed"], plan["refusals"]) == ([], False, [])
    assert group.broker.fenced == []


@pytest.mark.parametrize(
    ("there", "needed"),
    [
        ([], ["topic shop-group-state does not exist", "topic shop-group-inbox does not exist"]),
        (["shop-group-state"], ["topic shop-group-inbox does not exist"]),
        (
            ["shop-group-state", "shop-group-inbox"],
            ["the state topic holds no decision"],
        ),
    ],
)
def test_H24_a_group_that_lost_its_topics_before_its_first_commit_is_set_up_again(
    there: list[str],
    needed: list[str],
    program: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    group = FakeGroup(topics=False)
    group.broker.create_topic("orders", 2)
    for topic in there:
        group.broker.create_topic(topic)
    use(monkeypatch, group, T)
    assert main(["group", "recover", program, "--execute", "--json"]) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out)
    assert (plan["needed"], plan["executed"], plan["epoch"]) == (needed, True, 1)
    claim = _log_of(group)[0]
    assert isinstance(claim, LeaderClaim)
    ids = group.connections[-1].topics.topic_ids()
    assert (claim.leader_epoch, claim.topic_ids) == (1, ids)
    assert set(ids) == {state_topic(APP), inbox_topic(APP)}


def test_recovery_needs_the_program(lost: FakeGroup, capsys: pytest.CaptureFixture[str]) -> None:
    del lost
    assert main(["group", "recover", "shop"]) == ExitCode.USAGE
    assert "'shop' names no program; recovery needs MODULE:TOPOLOGY" in capsys.readouterr().err


# -- rest ------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> FakeGroup:
    """A group without live members, with one record in a repartition topic."""
    group = FakeGroup()
    topics = {"orders": 1, "shop-by-user-repartition": 1}
    for topic in topics:
        group.broker.create_topic(topic, 1)
        group.broker.send(topic, b"v", b"k")
    group.write(LogBook().leader("p1").member("a").about("0_0", partitions=topics))
    group.broker.groups[APP] |= {
        TopicPartition("orders", 0): _progress(1, producer_id("a", 1), 1),
        TopicPartition("shop-by-user-repartition", 0): _progress(1, producer_id("a", 1), 0),
    }
    use(monkeypatch, group, T + 3_600_000)
    return group


def test_a_rest_that_waits_too_long_names_the_reason(
    stopped: FakeGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["group", "rest", "shop", "--timeout", "1ms"]) == ExitCode.NOT_STOPPED_IN_TIME
    error = capsys.readouterr().err
    assert "no member is running" in error
    assert "shop-by-user-repartition-0: 1 offset is not processed" in error
    assert stopped.state().about.rest is not None
    assert main(["group", "rest", "shop", "--timeout", "0s"]) == ExitCode.USAGE


@pytest.mark.parametrize("as_json", [False, True])
def test_a_rest_prints_the_cut_and_resume_ends_it(
    stopped: FakeGroup, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    between = TopicPartition("shop-by-user-repartition", 0)
    stopped.broker.groups[APP][between] = _progress(1, producer_id("a", 1), 1)
    options = ["--json"] if as_json else []
    assert main(["group", "rest", "shop", *options]) == ExitCode.OK
    printed = capsys.readouterr().out
    if as_json:
        assert json.loads(printed) == {
            "application_id": "shop",
            "at_rest": True,
            "cut": [{"topic": "orders", "partition": 0, "offset": 1}],
        }
    else:
        assert "shop is at rest" in printed
        assert "tidewheel group resume shop" in printed
    assert "at rest" in stopped.state().about.held
    assert main(["group", "resume", "shop", *options]) == ExitCode.OK
    assert not stopped.state().about.held
    printed = capsys.readouterr().out
    assert ("continues" in printed) is not as_json
    assert main(["group", "resume", "shop"]) == ExitCode.FAILED
    assert "not at rest" in capsys.readouterr().err


def test_workers_with_a_fixed_assignment_do_not_rest(
    stopped: FakeGroup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(GroupAdmin, "fixed_workers", lambda *_: {"shop-fixed-0": "eu-1"})
    assert main(["group", "rest", "shop"]) == ExitCode.FAILED
    assert "shop-fixed-0 at eu-1; stop them" in capsys.readouterr().err
    assert stopped.state().about.rest is None
