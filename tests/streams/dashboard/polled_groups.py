"""Groups for tests of the dashboard."""

from collections.abc import Iterator
from dataclasses import replace as replace_fields
from typing import Final

from msgspec.structs import replace

from checks.repository_files import ROOT
from tests.rebalance.leader.group_logs import LogBook, two_members
from tests.streams.group.fake_group import APP, beat
from tidewheel import Topology
from tidewheel.rebalance.inspect.describe import fold_log
from tidewheel.rebalance.inspect.history import account
from tidewheel.rebalance.model import MemberPhase
from tidewheel.rebalance.protocol.messages import Beat, LeaderBeat
from tidewheel.rebalance.protocol.records import MemberRecord
from tidewheel.rebalance.protocol.task_status import RunningCall, TaskStatus
from tidewheel.streams.cli.group_access import moment_text
from tidewheel.streams.dashboard.graph import GraphPart, GroupGraph, TopologyGraph, program_graph
from tidewheel.streams.dashboard.poller import PolledGroup
from tidewheel.streams.dashboard.timeline import (
    AlarmHistory,
    AlarmSpan,
    HistoryEpisode,
    HistoryTexts,
    Mark,
)
from tidewheel.streams.group.inbox import InboxFold
from tidewheel.streams.group.status import group_status
from tidewheel.streams.group.topics import ReceivedMessage
from tidewheel.streams.processes.user_program import load_program
from tidewheel.streams.topology.description import NodeDescription
from tidewheel.streams.topology.layout import DrawnPart, laid_out

#: A member's name that attacks viewers.
EVIL = '</script><img src=x onerror=alert(1)>\n\nevent: end\ndata: {"look": 9}\n\n\r\u2028"'


def polled_group(later_ms: int = 0, *, name: str = "c") -> PolledGroup:
    """Return a group with `name` learning 0_1 from `b` and a stuck record of 0_0."""
    book = two_members().member(name)
    book.target({"0_0": "a", "0_1": name, "0_2": "a", "0_3": "b"}, f"{name} joined")
    book.step({"0_1": (f"{name}-1", 7)}, {"0_0": ("b-1", 8)}, parked=("0_3",)).after(1_000)
    learner = TaskStatus(
        task="0_1", role="learner", epoch=7, state="RESTORING",
        changelog={"t": 750}, ends={"t": 1_000}, lag=250, rate=50.0,
    )  # fmt: skip
    stuck = TaskStatus(
        task="0_0", role="active", epoch=1, state="RUNNING", lag=40, rate=2_000.0,
        range_count=4, ranges=((0xBEEF, 17, 65_000),),
    )  # fmt: skip
    inbox = InboxFold()
    leader = LeaderBeat(app=APP, member="p1", incarnation="p1", leader_epoch=1, seq=1)
    in_call = replace(
        beat("b"),
        call=RunningCall(text="enrich (app.py:3), in-0 offset 5", ms=151_000, is_long=True),
    )
    for message in (leader, beat("a", stuck), in_call, beat(name, learner)):
        inbox.add(ReceivedMessage(book.now_ms, message))
    status = group_status(APP, fold_log(book.entries), inbox, now_ms=book.now_ms + later_ms)
    return PolledGroup(
        status=status,
        history=HistoryTexts(moment_text).read(account(book.entries)),
        graph=GroupGraph(APP).read(book.group, inbox),
    )


#: Names that attack viewers.
ATTACKS: Final = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "</title><svg/onload=alert(1)>",
    "{{constructor.constructor('alert(1)')()}}",
    "__proto__",
    "constructor",
    EVIL,
)


def forged_group(attack: str) -> PolledGroup:
    """Return a group whose names, also of its application, hosts and topics, are an attack."""
    polled = polled_group(name=attack)
    status = polled.status
    members = tuple(
        replace_fields(
            member, name=attack, host=attack, rack=attack, reason=attack, phase="JOINING"
        )
        for member in status.members
    )
    alarms = tuple(replace_fields(alarm, name=attack, text=attack) for alarm in status.alarms)
    forged = replace_fields(
        status, application_id=attack, members=members, alarms=alarms, assignor=attack,
        leader=attack, topology_hash=attack, waiting=(attack,),
    )  # fmt: skip
    mark = Mark(at_ms=status.read_ms - 500, kind="came", lane=attack, text=attack)
    episode = HistoryEpisode(
        text=f"{attack.replace(chr(10), ' ')}\n{attack}", began_ms=status.read_ms - 1_000,
        ended_ms=None, marks=(mark,),
    )  # fmt: skip
    span = AlarmSpan(name=attack, text=attack, began_ms=status.read_ms - 2_000)
    node = NodeDescription(type="source", name=attack, topics=(attack,), stores=(attack,))
    names = (attack,)
    graph = TopologyGraph(
        layout=laid_out([DrawnPart(0, attack, (node,))], header_lines=2),
        parts=(
            GraphPart(
                part=0, title=attack, reads=names, writes=names, stores=names, has_tasks=True
            ),
        ),
        topology_hash="another one",
    )
    return PolledGroup(status=forged, history=(episode,), alarms=(span,), graph=graph)


#: Members of the demo's group, by host: lasting name and process id.
_WORKERS = {
    "worker-1": ("7e65c5d0a4f24b0c9e1f", 4711),
    "worker-2": ("03fa1bb2c8d94e6a8f70", 4890),
    "worker-3": ("c41d9e77f05a4d2b8c11", 5120),
    "worker-4": ("a90b3355e1c2478f9d60", 5377),
}
_TASKS = [f"{subtopology}_{partition}" for subtopology in range(4) for partition in range(4)]
#: Records per second and lag of a task, by sub-topology.
_FIGURES = {0: (5_210.0, 840), 1: (2_604.0, 31), 2: (2_598.0, 27), 3: (61.0, 0)}


def flights_group() -> PolledGroup:
    """Return the group of `tidewheel demo`'s program: two workers, then three, then four."""
    one, two, three, four = (name for name, _ in _WORKERS.values())
    book = LogBook().leader("p-worker-1")
    book.about(*_TASKS, topology_hash=flights_topology().hash()).after(40)
    _join(book, "worker-1")
    _join(book.after(900), "worker-2")
    owners = {task: (one, two)[index % 2] for index, task in enumerate(_TASKS)}
    book.after(600).target(owners, f"{_name('worker-1')} and {_name('worker-2')} joined").step()
    for task, member in owners.items():
        book.after(3).grant(task, member)
    _join(book.after(150_000), "worker-3")
    moved = ("1_1", "1_3", "2_1", "2_2", "3_0")
    wanted = owners | dict.fromkeys(moved, three)
    book.after(200).target(wanted, f"{_name('worker-3')} joined")
    book.step({task: (f"{three}-1", 7 + index) for index, task in enumerate(moved)})
    for index, task in enumerate(moved):
        book.after(9_000).revoke(task, owners[task], three)
        left = dict.fromkeys(moved[index + 1 :], (f"{three}-1", 7 + index))
        book.after(12).step(left).released(task, next_member=three).grant(task, three)
    _join(book.after(60_000), "worker-2", phase=MemberPhase.LEAVING, rejoin_ms=60_000)
    back = [task for task, member in wanted.items() if member == two]
    for task in back:
        book.revoke(task, two).after(30).released(task)
    _join(book, "worker-2", phase=MemberPhase.GONE, rejoin_ms=60_000)
    _join(book.after(11_000), "worker-2", life=2)
    for task in back:
        book.after(8).grant(task, two, life=2)
    _join(book.after(45_000), "worker-4")
    book.after(150).target(
        wanted | dict.fromkeys(("0_0", "2_0"), four), f"{_name('worker-4')} joined"
    )
    book.step({"0_0": (f"{four}-1", 12), "2_0": (f"{four}-1", 13)}).after(8_000)
    return _polled(book, wanted)


def _polled(book: LogBook, owners: dict[str, str]) -> PolledGroup:
    inbox = InboxFold()
    beats: list[LeaderBeat | Beat] = [_leader_beat(), *_beats(owners)]
    for message in beats:
        inbox.add(ReceivedMessage(book.now_ms - 700, message))
    status = group_status(APP, fold_log(book.entries), inbox, now_ms=book.now_ms)
    alarms = AlarmHistory()
    alarms.add(status.alarms[:1], book.now_ms - 15_000)
    return PolledGroup(
        status=replace_fields(status, application_id="flight-delays"),
        history=HistoryTexts(moment_text).read(account(book.entries)),
        alarms=alarms.add(status.alarms, book.now_ms),
        graph=program_graph(flights_topology()),
    )


def flights_topology() -> Topology:
    return load_program(f"{ROOT / 'examples' / 'flight_delays.py'}:topology").topology()


def _name(host: str) -> str:
    return f"{host}/0 ({_WORKERS[host][0][:6]})"


def _join(
    book: LogBook,
    host: str,
    *,
    phase: MemberPhase = MemberPhase.ACTIVE,
    rejoin_ms: int = 0,
    life: int = 1,
) -> LogBook:
    member, pid = _WORKERS[host]
    return book.write(
        MemberRecord(
            leader_epoch=book.leader_epoch, member=member, incarnation=f"{member}-{life}",
            phase=phase, process_id=f"p-{host}", host=host, slot=0, pid=pid + life - 1, threads=4,
            rack="ab"[pid % 2], rejoin_ms=rejoin_ms,
        )
    )  # fmt: skip


def _leader_beat() -> LeaderBeat:
    return LeaderBeat(app=APP, member="p-worker-1", incarnation="p-worker-1", leader_epoch=1, seq=1)


def _beats(owners: dict[str, str]) -> Iterator[Beat]:
    one, two, three, four = (name for name, _ in _WORKERS.values())
    for member, life in ((one, 1), (two, 2), (three, 1), (four, 1)):
        rows = [_running(task) for task, owner in owners.items() if owner == member]
        if member == four:
            rows = [_learning("0_0", 12, 0.62), _learning("2_0", 13, 0.93)]
        call = None
        if member == three:
            text = "summary (flight_delays.py:44), node KSTREAM-MAPVALUES-0000000007, task 1_3"
            call = RunningCall(text=text, ms=184_000, is_long=True)
        yield Beat(
            app=APP, member=member, incarnation=f"{member}-{life}", seq=1, full=True,
            tasks=tuple(rows), call=call,
        )  # fmt: skip


def _running(task: str) -> TaskStatus:
    rate, lag = _FIGURES[int(task[0])]
    return TaskStatus(
        task=task, role="active", epoch=1, state="RUNNING", rate=rate, lag=lag, range_count=8
    )


def _learning(task: str, epoch: int, part: float) -> TaskStatus:
    done = int(480_000 * part)
    return TaskStatus(
        task=task, role="learner", epoch=epoch, state="RESTORING", changelog={"t": done},
        ends={"t": 480_000}, lag=480_000 - done, rate=38_500.0,
    )  # fmt: skip


def large_group(*, tasks: int, members: int) -> PolledGroup:
    """Return a group in which tasks have just moved to as many members."""
    names = [f"{number:020x}" for number in range(members)]
    ids = [f"{number % 4}_{number}" for number in range(tasks)]
    book = LogBook().leader("p-0").about(*ids)
    for number, name in enumerate(names):
        book.after(100).write(
            MemberRecord(
                leader_epoch=1, member=name, incarnation=f"{name}-1", phase=MemberPhase.ACTIVE,
                process_id=f"p-{number}", host=f"{number:03}.workers.shop.example", slot=0,
            )
        )  # fmt: skip
    owners = {task: names[index % members] for index, task in enumerate(ids)}
    book.target(owners, "all joined").step()
    for task, member in owners.items():
        book.after(20).grant(task, member)
    log = fold_log(book.entries)
    status = group_status(APP, log, InboxFold(), now_ms=book.now_ms)
    return PolledGroup(
        status=status,
        history=HistoryTexts(moment_text).read(account(book.entries)),
        graph=GroupGraph(APP).read(log.group, InboxFold()),
    )
