"""Rejection of mixed fixed and group assignment."""

import logging
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeChangelogReader
from tests.fakes.clock import FakeClock
from tests.rebalance.leader.group_logs import LogBook, two_members
from tests.streams.group.fake_group import APP, FakeGroup, GroupAdmin, beat
from tidewheel.rebalance.model import MemberPhase
from tidewheel.rebalance.protocol.messages import MemberDied
from tidewheel.streams.errors import IncompatibleMemberError, StreamsError
from tidewheel.streams.group.topics import GroupTopics
from tidewheel.streams.worker.placement_conflict import PlacementCheck

SESSION_MS = 3_000
HOUR_MS = 3_600_000


class Brokers(GroupAdmin):
    """Brokers with these fixed workers; None: they don't answer."""

    def __init__(self, workers: Mapping[str, str] | None, broker: FakeBroker | None = None) -> None:
        super().__init__(FakeBroker() if broker is None else broker)
        self.workers = workers

    def fixed_workers(self, application_id: str) -> dict[str, str]:
        assert application_id == APP
        if self.workers is None:
            raise StreamsError("GROUP_AUTHORIZATION_FAILED: grant this principal DESCRIBE")
        return dict(self.workers)


class Time:
    """Clock that other workers act on while this one waits."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.clock = FakeClock()
        self.meanwhile = meanwhile
        self.waited_ms = 0

    def wait(self, timeout: float) -> bool:
        self.clock.advance(int(timeout * 1000))
        self.waited_ms += int(timeout * 1000)
        self.meanwhile()
        return False


def looking(
    brokers: Brokers,
    *,
    fixed: bool = False,
    time: Time | None = None,
    group: FakeGroup | None = None,
) -> PlacementCheck:
    time = time or Time()
    application: Any = SimpleNamespace(
        config=SimpleNamespace(application_id=APP), is_fixed=fixed, clock=time.clock
    )

    def topics(_config: Any, _admin: Any) -> GroupTopics:
        assert group is not None
        readers = [FakeChangelogReader(group.broker) for _ in range(2)]
        return GroupTopics(APP, brokers, *readers)

    return PlacementCheck(application, brokers, time, topics)


def of_group(book: LogBook) -> FakeGroup:
    group = FakeGroup()
    group.write(book)
    return group


def test_a_member_is_refused_while_workers_with_a_fixed_assignment_live() -> None:
    with pytest.raises(
        IncompatibleMemberError, match=r"workers of shop .*shop-0.*10\.0\.0\.7.*stop"
    ):
        looking(Brokers({"shop-0": "10.0.0.7"})).check()
    looking(Brokers({})).check()


def test_brokers_that_hide_fixed_workers_refuse_no_member(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    placement = looking(Brokers(None))
    placement.check()
    placement.check_as_member()
    (said,) = caplog.messages
    assert "workers of shop with a fixed assignment" in said
    assert "grant this principal DESCRIBE" in said


def test_a_member_checks_again_after_it_joined() -> None:
    brokers = Brokers({})
    placement = looking(brokers)
    placement.check()
    brokers.workers = {"shop-fixed-0": "10.0.0.7"}
    with pytest.raises(IncompatibleMemberError, match=r"shop-fixed-0 at 10\.0\.0\.7"):
        placement.check_as_member()


def test_a_fixed_worker_checks_again_when_it_is_visible() -> None:
    book = LogBook().leader("p1").about("0_0")
    group = of_group(book)
    brokers = Brokers({}, group.broker)

    def meanwhile() -> None:
        if not book.group.members:  # asked for workers with a fixed assignment, and there was none
            book.member("a")
            group.write(book)
            brokers.workers = {"shop-fixed-0": "here"}
        group.hear(0, beat("a"))

    time = Time(meanwhile)
    placement = looking(brokers, fixed=True, time=time, group=group)
    placement.check()
    with pytest.raises(IncompatibleMemberError, match="members of shop are alive: a at h-a"):
        placement.check_as_fixed("shop-fixed-0")


def test_a_fixed_worker_that_never_becomes_visible_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for workers, waited_ms in (({}, 10_000), (None, 0)):
        time, group = Time(), FakeGroup()
        placement = looking(Brokers(workers, group.broker), fixed=True, time=time, group=group)
        placement.check_as_fixed("shop-fixed-0")
        assert time.waited_ms == waited_ms
        assert "that members of shop see this worker" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
def test_H22_only_new_beats_prove_life_and_no_other_clock_counts(
    ahead_ms: int,
) -> None:
    book = two_members()
    group = of_group(book)
    time = Time()
    broker_ms = time.clock.now_ms() - ahead_ms
    group.beats(broker_ms, "a", "b")  # sent before: no proof of life
    placement = looking(Brokers({}, group.broker), fixed=True, time=time, group=group)

    placement.check()
    assert time.waited_ms == 2 * SESSION_MS, "nobody speaks"
    placement.check_as_fixed(None)
    assert time.waited_ms == 2 * SESSION_MS, "and need not be listened for again"

    time.meanwhile = lambda: group.hear(broker_ms + time.waited_ms, beat("b"))
    placement = looking(Brokers({}, group.broker), fixed=True, time=time, group=group)
    with pytest.raises(IncompatibleMemberError, match="members of shop are alive: b at h-b;"):
        placement.check()


def test_all_live_members_are_named() -> None:
    book = two_members()
    group = of_group(book)
    time = Time()

    def meanwhile() -> None:
        group.hear(0, beat("a"))
        if time.waited_ms >= 500:
            group.hear(0, beat("b"))

    time.meanwhile = meanwhile
    placement = looking(Brokers({}, group.broker), fixed=True, time=time, group=group)
    with pytest.raises(IncompatibleMemberError, match="a at h-a, b at h-b;"):
        placement.check()
    assert time.waited_ms <= 1_000


def test_after_a_clean_end_the_check_does_not_wait_for_beats() -> None:
    book = two_members()
    group = of_group(book)
    group.beats(book.now_ms, "a", "b")
    book.member("a", MemberPhase.GONE).member("b", MemberPhase.GONE)
    group.write(book)
    time = Time()
    placement = looking(Brokers({}, group.broker), fixed=True, time=time, group=group)
    placement.check()
    assert not time.waited_ms


def test_a_report_about_a_dead_member_is_no_proof_of_life() -> None:
    book = two_members()
    group = of_group(book)
    died = MemberDied(app=APP, member="a", incarnation="a-1", reason="killed")
    time = Time(lambda: group.hear(0, died))
    placement = looking(Brokers({}, group.broker), fixed=True, time=time, group=group)
    placement.check()


def test_without_a_group_the_check_does_not_wait_for_beats() -> None:
    placement = looking(Brokers({}), fixed=True)
    placement.check()
    placement.check_as_fixed(None)
