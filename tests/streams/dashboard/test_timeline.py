"""Time line: marks of episodes, and alarms over time."""

from dataclasses import replace

from tests.rebalance.leader.group_logs import LogBook, scale_out, two_members
from tidewheel.rebalance.inspect.history import account
from tidewheel.rebalance.model import MemberPhase
from tidewheel.streams.dashboard.timeline import AlarmHistory, HistoryTexts, Mark
from tidewheel.streams.group.alarms import Alarm


def _marks(book: LogBook) -> list[Mark]:
    history = HistoryTexts(str).read(account(book.entries))
    return [mark for episode in history for mark in episode.marks]


def test_a_moved_task_is_at_its_new_owner_since_its_copy_began() -> None:
    book = scale_out()
    moved = [mark for mark in _marks(book) if mark.kind == "moved"][-1]
    assert (moved.lane, moved.at_ms) == ("h-c (c)", book.now_ms)
    assert moved.since_ms == book.now_ms - 4_012
    assert moved.text.startswith("0_1: h-b (b) → h-c (c) by learner")


def test_members_come_and_go_in_their_lanes() -> None:
    book = two_members()
    book.after(50).member("b", MemberPhase.LEAVING)
    book.after(50).member("b", MemberPhase.GONE)
    marks = [(mark.lane, mark.kind) for mark in _marks(book) if mark.lane and mark.kind != "moved"]
    assert marks[:2] == [("h-a (a)", "came"), ("h-b (b)", "came")]
    assert set(marks[2:]) == {("h-b (b)", "went")}


def test_tasks_granted_together_are_one_mark_and_long_episodes_are_cut() -> None:
    tasks = tuple(f"0_{partition}" for partition in range(500))
    episodes = HistoryTexts(str).read(account(two_members(tasks).entries))
    (episode,) = [episode for episode in episodes if len(episode.marks) > 1]
    moved = [mark for mark in episode.marks if mark.kind == "moved"]
    assert [mark.text.split(":")[0] for mark in moved] == [
        "250 tasks → h-a (a)",
        "250 tasks → h-b (b)",
    ]
    lines = episode.text.splitlines()
    assert len(lines) == 201
    assert "tidewheel group history" in lines[-1]


def test_an_episode_is_converted_again_only_while_it_lasts() -> None:
    history = HistoryTexts(str)
    episodes = account(scale_out().entries)
    lasting = (*episodes[:-1], replace(episodes[-1], ended_ms=None))
    first, again = history.read(lasting), history.read(episodes)
    assert all(one is other for one, other in zip(first[:-1], again[:-1], strict=True))
    assert again[-1].ended_ms == episodes[-1].ended_ms


def test_an_alarm_lasts_from_its_first_poll_to_the_poll_without_it() -> None:
    alarms = AlarmHistory()
    alarms.add([Alarm(name="no-leader", text="for 1 s")], 1_000)
    (lasting,) = alarms.add([Alarm(name="no-leader", text="for 2 s")], 2_000)
    assert (lasting.began_ms, lasting.ended_ms, lasting.text) == (1_000, None, "for 2 s")
    (ended,) = alarms.add([], 3_000)
    assert (ended.began_ms, ended.ended_ms) == (1_000, 3_000)
    spans = alarms.add([Alarm(name="no-leader", text="again")], 4_000)
    assert [(span.began_ms, span.ended_ms) for span in spans] == [(1_000, 3_000), (4_000, None)]


def test_the_number_of_alarms_is_bounded() -> None:
    alarms = AlarmHistory()
    for at_ms in range(300):
        spans = alarms.add([Alarm(name=f"alarm-{at_ms}", text="x")], at_ms)
    assert len(spans) == 100
    assert spans[-1].name == "alarm-299"
