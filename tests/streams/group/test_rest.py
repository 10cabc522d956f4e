"""Rest of an application, on a fake cluster whose members do what the test says."""

from collections.abc import Callable, Sequence
from typing import Final

import pytest

from tests.fakes.clients import FakeChangelogReader, FakeSinkProducer
from tests.rebalance.leader.group_logs import LogBook, T, producer_id
from tests.streams.bulk.local_job import KilledProducer
from tests.streams.group.fake_group import APP, FakeGroup, GroupAdmin, beat
from tidewheel import StreamsError
from tidewheel.rebalance.leader.resting import is_held_at_rest
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.messages import LeaderBeat
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.streams.group.group_log_writer import GroupLogWriter
from tidewheel.streams.group.rest import NotAtRestError, RestCluster, RestDriver, resume
from tidewheel.streams.group.topics import GroupTopics
from tidewheel.streams.kafka.admin.group_log import state_topic
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

ORDERS: Final = TopicPartition("orders", 0)
BETWEEN: Final = TopicPartition("shop-by-user-repartition", 0)


class Killed(BaseException):
    """The process is gone: no handler catches this."""


class Kill:
    """Kill at the `at`th effect; counts all effects."""

    def __init__(self, at: int = 1 << 30) -> None:
        self.at = at
        self.count = 0

    def __call__(self, effect: str) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed(effect)


class Leader(KilledProducer):
    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self.begin()
        where = TopicPartition(state_topic(APP), 0)
        self.produce_changelog(where, keys, values, [0] * len(keys))
        self.commit(APP, {})


class KilledAdmin(GroupAdmin):
    def __init__(self, shop: "Shop", before: Kill) -> None:
        super().__init__(shop.group.broker)
        self._shop = shop
        self._before = before

    def fence(self, transactional_ids: Sequence[str]) -> None:
        self._before("fence")
        super().fence(transactional_ids)
        self._shop.fenced += transactional_ids
        self._shop.on_fence()


class Shop:
    """Member `a` runs two tasks, with 30 records of the first for the second to process."""

    def __init__(self) -> None:
        self.group = FakeGroup()
        self.broker = self.group.broker
        self.broker.create_topic(ORDERS.topic, 1)
        self.broker.create_topic(BETWEEN.topic, 1)
        for topic, count in ((ORDERS.topic, 100), (BETWEEN.topic, 30)):
            for _ in range(count):
                self.broker.send(topic, b"v", b"k")
        book = LogBook().leader("p1").member("a")
        book.about("0_0", "1_0", partitions={ORDERS.topic: 1, BETWEEN.topic: 1})
        self.group.write(book.grant("0_0", "a").grant("1_0", "a"))
        self.group.now_ms = T
        self.fenced: list[str] = []
        self.on_fence: Callable[[], None] = lambda: None
        self.commit(ORDERS, Vector.at(70))
        self.commit(BETWEEN, Vector.at(20))
        self.beat()

    def commit(self, at: TopicPartition, vector: Vector) -> None:
        progress = Progress(
            task_epoch=1,
            transactional_id=producer_id("a"),
            topic_id=bytes(16),
            topology_hash=bytes(8),
            vector=vector,
        )
        self.broker.groups[APP][at] = CommittedOffset(progress.committed_offset, progress.encode())

    def beat(self, **rests: int) -> None:
        """Let the member report its tasks, at rest since these epochs."""
        rows = [
            TaskStatus(
                task=task, role="active", epoch=1, state="RUNNING", rest=rests.get(f"t{task}", 0)
            )
            for task in ("0_0", "1_0")
        ]
        self.group.hear(
            T, LeaderBeat(app=APP, member="p1", incarnation="p1", leader_epoch=1, seq=1)
        )
        self.group.hear(T, beat("a", *rows))

    def work(self, _seconds: float = 0) -> None:
        """Let the member do all that a rest demands, step by step."""
        rest = self.group.state().about.rest
        if rest is None:
            return
        vector = Vector.at(70 if not rest.until else rest.until["orders-0"])
        if self.broker.groups[APP][ORDERS].offset < vector.lowest:
            self.commit(ORDERS, vector)
        if self.broker.groups[APP][BETWEEN].offset < 30:
            self.commit(BETWEEN, Vector.at(30))
        else:
            self.beat(t0_0=rest.epoch, t1_0=rest.epoch)

    def cluster(self, kill: Kill | None = None) -> RestCluster:
        kill = kill or Kill()
        admin = KilledAdmin(self, kill)
        reader = FakeChangelogReader
        log = GroupLogWriter(
            APP,
            admin=admin,
            topics=GroupTopics(APP, admin, reader(self.broker), reader(self.broker)),
            writer=lambda: Leader(self.broker, f"{APP}-leader", kill),
            sink=lambda: FakeSinkProducer(self.broker),
            now_ms=lambda: self.group.now_ms,
            pause=lambda _: None,
        )
        return RestCluster(application_id=APP, group_log=log, admin=admin)

    def rest(
        self,
        kill: Kill | None = None,
        timeout_s: float = 60,
        pause: Callable[[float], None] | None = None,
    ) -> dict[TopicPartition, int]:
        driver = RestDriver(self.cluster(kill), "1", pause=pause or self.work)
        return driver.run(timeout_s)

    @property
    def is_at_rest(self) -> bool:
        return is_held_at_rest(self.group.state())


def _wait(_seconds: float) -> None: ...


def test_an_application_comes_to_rest_once_its_member_confirms() -> None:
    shop = Shop()
    assert shop.rest() == {ORDERS: 70}
    assert shop.is_at_rest
    assert shop.fenced == [producer_id("a")]
    assert not shop.group.state().members
    assert shop.rest() == {ORDERS: 70}, "a second run finds the same"


def test_uneven_key_ranges_are_made_level_first() -> None:
    shop = Shop()
    shop.commit(ORDERS, Vector((0, 1 << 31), (70, 75)))
    assert shop.rest() == {ORDERS: 75}


@pytest.mark.parametrize("uneven", [False, True])
def test_a_killed_run_can_be_repeated_at_every_step(*, uneven: bool) -> None:
    def prepared() -> Shop:
        shop = Shop()
        if uneven:
            shop.commit(ORDERS, Vector((0, 1 << 31), (70, 75)))
        return shop

    kill = Kill()
    cut = prepared().rest(kill)
    assert kill.count > 6
    for at in range(1, kill.count + 1):
        shop = prepared()
        with pytest.raises(Killed):
            shop.rest(Kill(at))
        for _ in range(3):
            shop.work()
        assert shop.rest() == cut
        resume(shop.cluster(), "2")
        assert not shop.group.state().about.held
        assert shop.group.state().about.rest is None


def test_no_rest_is_reported_without_a_confirmation() -> None:
    """A member of a version without rest commits on, and reports no rest."""
    shop = Shop()

    def ignore(_seconds: float) -> None:
        shop.commit(BETWEEN, Vector.at(30))
        shop.beat()

    with pytest.raises(NotAtRestError, match=r"task 0_0 of h-a \(a\) has not come to rest") as late:
        shop.rest(timeout_s=0, pause=ignore)
    assert "version without rest" in str(late.value)
    assert "max_task_idle_ms" in str(late.value)
    assert not shop.is_at_rest
    assert not shop.fenced
    assert shop.group.state().about.rest is not None


def test_records_that_are_left_after_the_fences_are_processed_first() -> None:
    shop = Shop()

    def write_late() -> None:
        shop.on_fence = lambda: None
        shop.broker.send(BETWEEN.topic, b"late", b"k")

    shop.on_fence = write_late
    waits: list[str] = []

    def work(seconds: float) -> None:
        if shop.fenced and not waits:
            assert not shop.is_at_rest
            waits.append("left")
            shop.commit(BETWEEN, Vector.at(31))
        shop.work(seconds)

    assert shop.rest(pause=work) == {ORDERS: 70}
    assert waits
    assert len(shop.fenced) == 2


def test_an_order_that_vanishes_ends_the_command() -> None:
    shop = Shop()
    with pytest.raises(StreamsError, match="takes input again"):
        shop.rest(pause=lambda _: resume(shop.cluster(), "2"))
    assert not shop.is_at_rest


def test_a_stopped_application_comes_to_rest_if_nothing_is_left() -> None:
    shop = Shop()
    shop.group.now_ms = T + 3_600_000
    with pytest.raises(NotAtRestError, match="no member is running: start the application"):
        shop.rest(timeout_s=0, pause=_wait)
    shop.commit(BETWEEN, Vector.at(30))
    assert shop.rest(pause=_wait) == {ORDERS: 70}
    assert shop.is_at_rest


def test_changed_offsets_of_an_application_at_rest_are_reported() -> None:
    shop = Shop()
    shop.rest()
    shop.commit(BETWEEN, Vector.at(3))
    with pytest.raises(StreamsError, match="27 offsets are not processed"):
        shop.rest()


def test_what_is_not_at_rest_is_not_resumed() -> None:
    with pytest.raises(StreamsError, match="not at rest"):
        resume(Shop().cluster(), "2")
