"""Groups for tests of the dashboard."""

from msgspec.structs import replace

from tests.rebalance.leader.group_logs import two_members
from tests.streams.group.fake_group import APP, beat
from tidewheel.rebalance.inspect.describe import fold_log
from tidewheel.rebalance.protocol.messages import LeaderBeat
from tidewheel.rebalance.protocol.task_status import RunningCall, TaskStatus
from tidewheel.streams.dashboard.poller import PolledGroup
from tidewheel.streams.group.inbox import InboxFold
from tidewheel.streams.group.status import group_status
from tidewheel.streams.group.topics import ReceivedMessage

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
    return PolledGroup(status=status, history=(f"2026-11-21  {name} joined\n  +0 ms  more",))
