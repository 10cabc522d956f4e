"""Group history: members, moves, durations."""

import pytest

from tests.rebalance.leader.group_logs import LogBook, T, scale_out, two_members
from tidewheel.rebalance.inspect import describe
from tidewheel.rebalance.inspect.history import Chronicle, Episode, account, episode_text
from tidewheel.rebalance.model import MemberPhase, TaskId
from tidewheel.rebalance.protocol.group import Group


def _when(timestamp_ms: int) -> str:
    return f"T+{timestamp_ms - T}"


def _last_episode(book: LogBook) -> Episode:
    return account(book.entries)[-1]


def test_the_episode_of_a_scale_out_lists_its_steps() -> None:
    assert episode_text(_last_episode(scale_out()), _when) == (
        "T+2000  1 task granted, 3 stayed, 4.2 s\n"
        "  +0 ms     h-c (c) joined\n"
        "  +200 ms   target 2: c joined\n"
        "  +4.2 s    0_1: h-b (b) → h-c (c) by learner (planted 4.0 s before), 12 ms without an owner, epoch 2"
    )


def test_the_first_target_starts_every_task() -> None:
    episode = account(two_members().entries)[-1]
    assert episode_text(episode, _when) == (
        "T+10  4 tasks granted, 0 stayed, 300 ms\n"
        "  +0 ms     h-a (a) joined\n"
        "  +0 ms     h-b (b) joined\n"
        "  +300 ms   target 1: a and b joined\n"
        "  +300 ms   0_0: → h-a (a) started, epoch 1\n"
        "  +300 ms   0_1: → h-b (b) started, epoch 1\n"
        "  +300 ms   0_2: → h-a (a) started, epoch 1\n"
        "  +300 ms   0_3: → h-b (b) started, epoch 1"
    )


def test_a_death_with_a_standby() -> None:
    book = two_members().step(standbys={"0_1": ("a-1", 3)}).after(5_000)
    book.member("b", MemberPhase.FENCING, reason="its process ended")
    book.fence_wait("0_1", "b").fence_wait("0_3", "b")
    book.after(600).member("b", MemberPhase.FENCED)
    book.released("0_1", "fence").released("0_3", "fence").step()
    book.grant("0_1", "a").grant("0_3", "a").member("b", MemberPhase.GONE)
    book.after(100).target({"0_0": "a", "0_1": "a", "0_2": "a", "0_3": "a"}, "b died")
    assert episode_text(_last_episode(book), _when) == (
        "T+6000  2 tasks granted, 2 stayed, 700 ms\n"
        "  +0 ms     h-b (b) counts as dead and is being fenced: its process ended\n"
        "  +600 ms   h-b (b) is fenced\n"
        "  +700 ms   target 2: b died\n"
        "  +600 ms   0_1: h-b (b) → h-a (a) by its standby (planted 5.6 s before), 600 ms without an owner, its owner was fenced, epoch 2\n"
        "  +600 ms   0_3: h-b (b) → h-a (a) without a copy, 600 ms without an owner, its owner was fenced, epoch 2"
    )


def test_a_standby_stays_known_when_its_task_moves_to_another_member() -> None:
    standbys = {"0_1": ("a-1", 3)}
    book = two_members().step(standbys=standbys).after(5_000).member("c")
    book.target({"0_0": "a", "0_1": "c", "0_2": "a", "0_3": "b"}, "c joined")
    book.step({"0_1": ("c-1", 7)}, standbys).after(1_000)
    book.step(standbys=standbys).released("0_1").grant("0_1", "c").after(1_000)
    book.member("c", MemberPhase.FENCING).fence_wait("0_1", "c").released("0_1", "fence")
    book.step().grant("0_1", "a")
    (move,) = _last_episode(book).moves
    assert (move.how, move.planted_ms) == ("standby", T + 1_000)


def test_the_cost_of_a_record_does_not_grow_with_the_number_of_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = [f"0_{partition}" for partition in range(500)]
    book = two_members(tuple(tasks))
    moving = tasks[1:100:2]
    owners = {task: "ab"[index % 2] for index, task in enumerate(tasks)}
    book.target(owners | dict.fromkeys(moving, "a"), "moves")
    for task in moving:
        book.step({task: ("a-1", 7)}).revoke(task, "b", "a").step().released(task).grant(task, "a")
    checked: list[TaskId] = []

    def counted(group: Group, task: TaskId) -> bool:
        checked.append(task)
        return is_settled(group, task)

    is_settled = describe._is_settled  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(describe, "_is_settled", counted)
    (*_, episode) = account(book.entries)
    assert (len(episode.moves), episode.stayed) == (50, 450)
    # Once for each task after a target and after each change of the program, and once a record.
    assert len(checked) < len(book.entries) + 10 * len(tasks)


def test_a_static_member_restarts() -> None:
    book = two_members().member("b", MemberPhase.LEAVING, rejoin_ms=60_000)
    book.revoke("0_1", "b").revoke("0_3", "b").after(20).released("0_1").released("0_3")
    book.member("b", MemberPhase.GONE, rejoin_ms=60_000)
    book.after(2_480).member("b", MemberPhase.GONE).member("b", life=2)
    book.grant("0_1", "b", life=2).grant("0_3", "b", life=2)
    assert episode_text(_last_episode(book), _when) == (
        "T+1000  2 tasks granted, 2 stayed, 2.5 s\n"
        "  +0 ms     h-b (b) releases its tasks for a restart\n"
        "  +20 ms    h-b (b) is away, its tasks wait 1 min 0 s for it\n"
        "  +2.5 s    h-b (b) is back after 2.5 s\n"
        "  +2.5 s    0_1: h-b (b) → h-b (b) returned to its own state, 2.5 s without an owner, epoch 2\n"
        "  +2.5 s    0_3: h-b (b) → h-b (b) returned to its own state, 2.5 s without an owner, epoch 2"
    )


def test_a_static_member_that_misses_its_rejoin_timeout() -> None:
    book = two_members().member("b", MemberPhase.GONE, rejoin_ms=60_000)
    book.after(60_000).member("b", MemberPhase.GONE)
    assert "h-b (b) did not come back in time" in episode_text(_last_episode(book), _when)


def test_a_learner_that_is_no_longer_needed() -> None:
    book = two_members().member("c").target({"0_1": "c"}).step({"0_1": ("c-1", 7)})
    book.after(500).member("c", MemberPhase.GONE)
    book.target({"0_0": "a", "0_1": "b", "0_2": "a", "0_3": "b"}, "c left").step()
    assert [each.text for each in _last_episode(book).happenings] == [
        "h-c (c) joined",
        "target 2",
        "h-c (c) left",
        "target 3: c left",
        "the learner of 0_1 at h-c (c) was dropped, the task stayed",
    ]
    assert (_last_episode(book).moves, _last_episode(book).stayed) == ((), 4)


def test_a_new_leader_starts_an_episode() -> None:
    assert episode_text(_last_episode(two_members().after(10).leader("p2")), _when) == (
        "T+1010  p2 leads, in place of p1 (leader epoch 2)\n"
        "  +0 ms     p2 leads, in place of p1 (leader epoch 2)"
    )


def test_an_unfinished_episode_is_marked() -> None:
    book = two_members().member("c").target({"0_1": "c"}, "c joined").step({"0_1": ("c-1", 7)})
    episode = _last_episode(book)
    assert episode.ended_ms is None
    assert episode_text(episode, _when).startswith(
        "T+1000  0 tasks granted, 4 stayed so far: not finished"
    )


def test_tasks_without_state_move_without_a_copy() -> None:
    book = LogBook().leader("p1").about("0_0", stateful=False).member("a")
    book.target({"0_0": "a"}).grant("0_0", "a").member("b").target({"0_0": "b"})
    book.revoke("0_0", "a").released("0_0").grant("0_0", "b")
    assert [each.how for each in _last_episode(book).moves] == ["stateless"]


def test_member_phases_are_described_in_words() -> None:
    book = two_members().member("b", MemberPhase.PARKED, reason="its topology is newer")
    book.member("b").member("b", MemberPhase.LEAVING, drain_ms=25_000)
    book.member("b", MemberPhase.LEAVING).member("b", MemberPhase.GONE)
    texts = [each.text for episode in account(book.entries)[2:] for each in episode.happenings]
    assert texts == [
        "h-b (b) gets no tasks: its topology is newer",
        "h-b (b) is active again",
        "h-b (b) is leaving, its tasks have 25.0 s to move first",
        "h-b (b) left",
    ]


def test_changes_of_the_group_are_described() -> None:
    book = two_members().about("0_0", held="topic orders lost partitions")
    book.about(*(f"0_{number}" for number in range(6)))
    texts = [each.text for episode in account(book.entries)[2:] for each in episode.happenings]
    assert texts == [
        "nothing is decided: topic orders lost partitions",
        "the program has 1 tasks now, 4 before",
        "decides again",
        "the program has 6 tasks now, 1 before",
    ]


def test_episodes_can_be_read_while_records_arrive() -> None:
    book = scale_out().step({"0_0": ("b-1", 9)}).step().member("c", MemberPhase.GONE)
    chronicle = Chronicle()
    for count, entry in enumerate(book.entries, 1):
        chronicle.add(entry)
        assert chronicle.episodes() == account(book.entries[:count])
    texts = [each.text for episode in chronicle.episodes()[-2:] for each in episode.happenings]
    assert texts[:2] == [
        "the learner of 0_0 at h-b (b) was dropped, the task stayed",
        "h-c (c) left",
    ]


def test_only_the_configured_number_of_episodes_is_kept() -> None:
    book = scale_out()
    chronicle = Chronicle(keep=1)
    for entry in book.entries:
        chronicle.add(entry)
    assert chronicle.episodes() == account(book.entries)[-1:]


def test_the_episode_of_a_restart_under_a_new_leader_ends() -> None:
    book = two_members()
    for name, tasks in (("a", ("0_0", "0_2")), ("b", ("0_1", "0_3"))):
        for task in tasks:
            book.released(task)
        book.member(name, MemberPhase.GONE)
    book.after(5_000).leader("p2").member("a", life=2).member("b", life=2)
    for name, tasks in (("a", ("0_0", "0_2")), ("b", ("0_1", "0_3"))):
        for task in tasks:
            book.after(10).grant(task, name, life=2)
    assert _last_episode(book).ended_ms == book.now_ms
