"""Transcripts of whole groups: messages, records, orders, and the group after each act.

In `transcripts/`, `#` lines are comments, `> …` lines events, all others results. To rewrite them:
`REWRITE_TRANSCRIPTS=1 pytest tests/rebalance/leader/test_transcripts.py`. Review the difference.
"""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.rebalance.leader.round_table import RoundTable, Worker, with_settings
from tidewheel.rebalance.inspect.describe import describe_group
from tidewheel.rebalance.protocol.messages import AnyMessage, Beat, JoinGroup, LeaderBeat
from tidewheel.rebalance.protocol.orders import AnyOrder, MayClose, WorkerClosed, WorkerLeaves
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    BootstrappedRecord,
    BootstrapRecord,
    Copy,
    GroupRecord,
    LeaderClaim,
    MemberRecord,
    SnapshotBegin,
    SnapshotEnd,
    StepRecord,
    TargetRecord,
    TaskRecord,
)

TRANSCRIPTS = Path(__file__).parent / "transcripts"


class Scribe(RoundTable):
    def __init__(self, **given: object) -> None:
        self.lines: list[str] = []
        super().__init__(with_settings(**given))
        self.watchers.append(lambda record: self.write(f"  log     {record_text(record)}"))

    def write(self, line: str) -> None:
        self.lines.append(line)

    def act(self, title: str, do: Callable[[], object], *, for_ms: int = 0, why: str = "") -> None:
        if why:
            self.write(f"# {why}")
        self.write(f"> {title}")
        do()
        self.run(for_ms)
        self.write("----")
        self.write(describe_group(self.group))
        self.write("")

    def start(self, name: str, life: int = 1, **given: object) -> Worker:
        worker = super().start(name, life, **given)
        obey = worker.obey

        def written(order: AnyOrder, now_ms: int) -> None:
            self.write(f"  {name}-{life} <-  {order_text(order)}")
            obey(order, now_ms)

        worker.obey = written  # type: ignore[method-assign]  # the scribe looks over its shoulder
        return worker

    def receive(self, message: AnyMessage) -> None:
        """Record messages, without periodic ones."""
        if not isinstance(message, Beat | LeaderBeat | JoinGroup) and message not in self.said:
            self.write(f"  {message.incarnation} says {message_text(message)}")
        super().receive(message)


def record_text(record: AnyRecord) -> str:
    match record:
        case LeaderClaim():
            text = f"CLAIM of {record.leader}, epoch {record.leader_epoch}"
        case SnapshotBegin() | SnapshotEnd():
            text = "SNAPSHOT " + ("begins" if isinstance(record, SnapshotBegin) else "ends")
        case GroupRecord():
            text = f"GROUP {len(record.tasks)} tasks {record.held}".rstrip()
        case MemberRecord():
            text = f"MEMBER {record.incarnation} {record.phase} ({record.reason})"
        case TargetRecord():
            owners = " ".join(f"{task}:{member}" for task, member in record.owners.items())
            text = f"TARGET {record.group_epoch} {owners} ({record.reason})"
        case StepRecord():
            copies = [f"{task} learner {copy_text(copy)}" for task, copy in record.learners.items()]
            copies += [
                f"{task} standby {copy_text(copy)}"
                for task, each in record.standbys.items()
                for copy in each
            ]
            text = f"STEP {record.step_epoch} " + ", ".join(copies)
            text += f" parked {' '.join(record.parked)}" if record.parked else ""
        case TaskRecord():
            owner = record.owner or "nobody"
            text = f"{record.event or record.phase} {record.task} epoch {record.task_epoch} {owner}"
            text += f" -> {record.next_member}" if record.next_member else ""
            text += f" [{record.source}]" if record.source else ""
            text += f" ({record.reason})" if record.reason else ""
        case BootstrapRecord() | BootstrappedRecord():
            text = f"{type(record).__name__} {record.store}"
    return text.rstrip()


def copy_text(copy: Copy) -> str:
    return f"{copy.incarnation}@{copy.learn_epoch}"


def message_text(message: AnyMessage) -> str:
    fields = msgspec.to_builtins(message)
    kind = fields.pop("kind")
    for name in ("app", "member", "incarnation", "store_uuid", "ends"):
        fields.pop(name, None)
    return f"{kind} " + " ".join(f"{name}={value}" for name, value in fields.items())


def order_text(order: AnyOrder) -> str:
    fields = msgspec.to_builtins(order)
    return f"{fields.pop('order')} " + " ".join(f"{name}={value}" for name, value in fields.items())


# -- the conversations ------------------------------------------------------------------------------------------------


def leave(table: Scribe, incarnation: str, *, rejoin: bool = False, drain_ms: int = 0) -> None:
    wish = WorkerLeaves(rejoin=rejoin, drain_ms=drain_ms)
    table.workers[incarnation].member.report(wish, table.now_ms)


def close(table: Scribe, incarnation: str) -> None:
    worker = table.workers[incarnation]
    assert any(isinstance(order, MayClose) for order in worker.told)
    worker.member.report(WorkerClosed(), table.now_ms)


def learner_promoted() -> Scribe:
    """A second member learns two tasks and takes them over."""
    table = Scribe()
    table.act(
        "a starts", lambda: table.start("a"), for_ms=1_000, why="The first member has everything."
    )
    table.act(
        "b starts",
        lambda: table.start("b"),
        for_ms=1_000,
        why="It learns; the owner goes on and notices nothing. It has not settled.",
    )
    table.act(
        "time passes", lambda: None, for_ms=6_000, why="It has settled: ready copies take over."
    )
    return table


def leader_failover() -> Scribe:
    """The leader dies with a learner and a fence in progress."""
    table = Scribe()
    table.act("a and b start", lambda: (table.start("a"), table.start("b")), for_ms=1_000)
    table.act("c starts", lambda: table.start("c"), for_ms=1_000)
    table.slow_fences.add("b-1")
    table.act("b is killed", lambda: table.kill("b-1"), why="The fence takes its time.")
    table.slow_fences.clear()
    table.act(
        "p1 claims",
        lambda: table.lead("p1"),
        for_ms=1_000,
        why="The new leader finds FENCING without FENCED: it fences again. The learner goes on.",
    )
    table.act("time passes", lambda: None, for_ms=6_000)
    return table


def drain() -> Scribe:
    """A member drains: its tasks move to learners, then it closes."""
    table = Scribe()
    table.act("a and b start", lambda: (table.start("a"), table.start("b")), for_ms=10_000)
    table.act("a drains", lambda: leave(table, "a-1", drain_ms=20_000), for_ms=1_000)
    table.act("a closes", lambda: close(table, "a-1"), for_ms=500)
    return table


def kill_with_standby() -> Scribe:
    """A member is killed; a caught-up standby takes over."""
    table = Scribe(num_standby_replicas=1)
    table.act("a and b start", lambda: (table.start("a"), table.start("b")), for_ms=2_000)
    table.act("b is killed", lambda: table.kill("b-1"), for_ms=500)
    return table


def static_bounce() -> Scribe:
    """A static member restarts: its tasks wait for it."""
    table = Scribe()
    table.act(
        "a and b start",
        lambda: (table.start("a", static=True), table.start("b", static=True)),
        for_ms=10_000,
    )
    table.act("b leaves to return", lambda: leave(table, "b-1", rejoin=True), for_ms=100)
    table.act("b closes", lambda: close(table, "b-1"), for_ms=5_000, why="Nobody takes its tasks.")
    table.act("b starts again", lambda: table.start("b", 2, static=True), for_ms=1_000)
    return table


CONVERSATIONS: dict[str, Callable[[], Scribe]] = {
    each.__name__: each
    for each in (learner_promoted, leader_failover, drain, kill_with_standby, static_bounce)
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_equals_its_transcript(name: str) -> None:
    text = "\n".join([f"# {CONVERSATIONS[name].__doc__}", "", *CONVERSATIONS[name]().lines])
    path = TRANSCRIPTS / f"{name}.txt"
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(text + "\n", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text + "\n"


def test_every_transcript_belongs_to_a_conversation() -> None:
    assert {path.stem for path in TRANSCRIPTS.glob("*.txt")} == set(CONVERSATIONS)
