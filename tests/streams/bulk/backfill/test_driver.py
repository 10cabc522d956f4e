"""Publication of a backfill: kills at any step, refusals, and runs that take over."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import pytest

from tests.fakes.clients import FakeAdmin
from tests.rebalance.leader.group_logs import LogBook, producer_id
from tests.streams.bulk.backfill.outputs import (
    Output,
    outputs_of,
    runs_of,
    small_transactions,
)
from tests.streams.bulk.local_job import (
    FakeWriterPorts,
    Kill,
    Killed,
    KilledAdmin,
    KilledProducer,
    killed_group_log,
)
from tests.streams.group.fake_group import APP, FakeGroup
from tidewheel import StreamsBuilder, StreamsError
from tidewheel.rebalance.leader.bootstrapping import BOOTSTRAP_HOLD, EVERY_STORE
from tidewheel.rebalance.model import Shard, TaskId, TopicPartition
from tidewheel.rebalance.producer_ids import backfill_id
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.messages import Beat
from tidewheel.rebalance.protocol.records import BootstrappedRecord
from tidewheel.streams.bulk.backfill.driver import (
    BackfillDriver,
    BackfillRefused,
    Ports,
    Results,
)
from tidewheel.streams.bulk.backfill.output_writer import OutputOrder, OutputReport, write_output
from tidewheel.streams.bulk.backfill.positions import positions_of
from tidewheel.streams.bulk.loading import BulkStep
from tidewheel.streams.errors import FencedError
from tidewheel.streams.kafka.admin.group_log import state_topic
from tidewheel.tasks.batch.batch_task import TaskEnd
from tidewheel.tasks.kafka.internal_topics import (
    ApplicationPlan,
    offsets_group,
    outputs_group,
    plan_application,
)
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards

NOW_MS = 1_700_000_000_000
CHANGELOG, TOTALS = f"{APP}-counts-changelog", "totals"
INPUTS = [TopicPartition("orders", number) for number in range(2)]
ROWS = [record._replace(key=b"r%d" % number) for number, record in enumerate(outputs_of(12))]
#: What the backfill writes to each partition.
WRITTEN: Mapping[TopicPartition, list[Output]] = {
    TopicPartition(CHANGELOG, 0): ROWS,
    TopicPartition(TOTALS, 0): outputs_of(20),
    TopicPartition(TOTALS, 1): outputs_of(7),
}


@pytest.fixture(autouse=True, scope="module")
def _small_transactions() -> Iterator[None]:
    with small_transactions():
        yield


def plan_of_counts() -> ApplicationPlan:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key_serde=str, value_serde=str)
    counts = orders.group_by_key().count(store="counts")
    counts.to_stream().to(TOTALS, key_serde=str, value_serde=int)
    return plan_application(builder.build().spec(None), APP, {"orders": 2})


class Shop:
    """An application on a fake cluster: two input partitions of five records, not yet run."""

    def __init__(self, shards: int = 1) -> None:
        self.group = FakeGroup(topics=False)
        self.broker = self.group.broker
        self.broker.create_topic("orders", 2)
        self.broker.create_topic(TOTALS, 2)
        for number in range(10):
            self.broker.send("orders", b"v", b"k", partition=number % 2)
        self.plan = with_shards(plan_of_counts(), shards)
        self.attempts = 0
        self.steps: list[str] = []
        self.workers_here: list[str] = []
        self.is_owner = True
        #: Texts of the hold while snapshots are written.
        self.holds: list[str] = []

    def driver(
        self,
        kill: Kill | None = None,
        write: Callable[[OutputOrder], Sequence[OutputReport]] | None = None,
        plan: ApplicationPlan | None = None,
    ) -> BackfillDriver:
        self.attempts += 1
        kill = kill or Kill()
        ports = Ports(
            admin=KilledAdmin(self.broker, kill),
            group_log=killed_group_log(self.broker, kill, NOW_MS),
            producer=lambda: KilledProducer(self.broker, backfill_id(APP), kill),
            create_topics=lambda: self._create_topics(kill),
            write=write or (lambda order: self.write(order, kill)),
            snapshot=lambda: self._see_hold("snapshot", kill),
            workers_here=lambda: self.workers_here,
            check_owner=self._check_owner,
        )
        return BackfillDriver(
            plan or self.plan, APP, ports, attempt=f"b{self.attempts}", on_step=self._on_step
        )

    def results(self, job: str = "job", totals: int = 27) -> Results:
        written = {CHANGELOG: len(ROWS), TOTALS: totals}
        return Results(job=job, written=written, commits=self._commits)

    def publish(self, kill: Kill | None = None) -> None:
        self.driver(kill).publish(self.results())

    def write(self, order: OutputOrder, kill: Kill) -> list[OutputReport]:
        ports = FakeWriterPorts(self.broker, self.state, kill)
        return [
            write_output(order, at, runs_of(at, records, (3,)), ports, lambda _: None)
            for at, records in WRITTEN.items()
        ]

    def _check_owner(self) -> None:
        if not self.is_owner:
            raise StreamsError("another run has taken over")

    def _create_topics(self, kill: Kill) -> None:
        kill("create topics")
        FakeAdmin(self.broker).create_topics(self.plan.changelog_topics)

    def _see_hold(self, effect: str, kill: Kill) -> None:
        kill(effect)
        self.holds.append(self.state().about.held)

    def _on_step(self, step: BulkStep) -> None:
        self.steps.append(f"{step.phase}: {step.text}")

    def _commits(self) -> Mapping[TopicPartition, CommittedOffset]:
        return positions_of(
            self.plan,
            {
                TaskId(0, at.partition): TaskEnd(
                    next_offsets={at: 5}, partition_times_ms={at: 77}, operator_times_ms=()
                )
                for at in INPUTS
            },
            dict.fromkeys(INPUTS, 5),
            FakeAdmin(self.broker).describe_topics(["orders"]),
            topology_hash=b"topology",
            transactional_id=backfill_id(APP),
        )

    def state(self) -> Group:
        return self.group.state()

    @property
    def is_over(self) -> bool:
        group = self.state()
        return not group.about.held and isinstance(
            group.bootstraps.get(EVERY_STORE), BootstrappedRecord
        )

    def written(self) -> dict[TopicPartition, list[Output]]:
        found: dict[TopicPartition, list[Output]] = {}
        for topic in (CHANGELOG, TOTALS):
            if topic in self.broker.topics:
                for record in self.broker.records(topic):
                    at = TopicPartition(topic, record.partition)
                    found.setdefault(at, []).append(Output(*record[2:]))
        return found

    def committed(self, shard: Shard = Shard()) -> dict[TopicPartition, int]:  # noqa: B008 - a frozen value
        found = FakeAdmin(self.broker).committed(offsets_group(APP, shard), None, stable=False)
        return {at: committed.offset for at, committed in found.items()}

    def check_published(self) -> None:
        assert self.written() == WRITTEN
        for shard in {Shard(), *Shard.all_of(self.plan.subtopologies[0].shards)}:
            assert self.committed(shard) == dict.fromkeys(INPUTS, 5)
        assert self.is_over


def effects(shards: int = 1) -> int:
    kill = Kill()
    with small_transactions():
        Shop(shards).publish(kill)
    return kill.count


def test_results_are_written_and_the_group_continues_from_the_offsets() -> None:
    shop = Shop()
    shop.publish()
    shop.check_published()
    assert [step.partition(":")[0] for step in shop.steps] == ["begin", "write", "commit"]
    assert all(hold.startswith(BOOTSTRAP_HOLD) for hold in shop.holds)
    assert len(shop.holds) == 1
    numbers = FakeAdmin(shop.broker).committed(outputs_group(APP), None, stable=True)
    assert numbers == {}


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("at", range(1, effects(2) + 1))
def test_after_a_kill_the_next_run_finishes_and_writes_nothing_twice(at: int, shards: int) -> None:
    shop = Shop(shards)
    kill = Kill(at)
    if at > effects(shards):
        return
    with pytest.raises(Killed):
        shop.publish(kill)
    group = shop.state()
    has_begun = EVERY_STORE in group.bootstraps
    if has_begun and not shop.is_over:
        assert group.about.held.startswith(BOOTSTRAP_HOLD)
    else:
        assert not group.about.held
        assert shop.is_over or not shop.written()
    groups = [shop.committed(shard) for shard in (Shard(), *Shard.all_of(shards))]
    assert groups in ([{}] * len(groups), [dict.fromkeys(INPUTS, 5)] * len(groups))
    if groups[0]:
        assert shop.written() == WRITTEN
    if shop.is_over:
        with pytest.raises(BackfillRefused, match="has committed offsets"):
            shop.publish()
    else:
        shop.publish()
    shop.check_published()


@pytest.mark.parametrize("first", range(1, effects() + 1, 3))
def test_a_third_run_finishes_after_two_kills(first: int) -> None:
    for second in range(1, effects(), 4):
        shop = Shop()
        for at in (first, second):
            try:
                shop.publish(Kill(at))
            except Killed:
                continue
            except BackfillRefused:
                assert shop.is_over
        if not shop.is_over:
            shop.publish()
        shop.check_published()


def test_other_results_than_those_being_written_are_refused() -> None:
    shop = Shop()
    with pytest.raises(Killed):
        shop.publish(Kill(effects() // 2))
    assert shop.state().about.held
    written, end = shop.written(), shop.broker.topics[state_topic(APP)].logs[0].end
    driver = shop.driver()
    assert driver.pending_job() == "job"
    driver.check()
    with pytest.raises(BackfillRefused, match=f"other results; run `tidewheel reset {APP}`"):
        driver.publish(shop.results("another"))
    assert shop.written() == written
    assert shop.broker.topics[state_topic(APP)].logs[0].end == end
    shop.publish()
    shop.check_published()


def test_no_job_is_pending_before_and_after() -> None:
    shop = Shop()
    assert shop.driver().pending_job() is None
    shop.publish()
    assert shop.driver().pending_job() is None


def _beat(member: str) -> Beat:
    return Beat(app=APP, member=member, incarnation=f"{member}-1", leader_epoch=1, seq=1)


def test_living_members_refuse_a_backfill_before_and_after_its_computation() -> None:
    shop = Shop()
    driver = shop.driver()
    driver.check()
    book = LogBook()
    book.after(NOW_MS - book.now_ms)
    book.leader("p1").about("0_0", "0_1").member("a").member("b")
    shop.group.write(book)
    shop.group.hear(NOW_MS - 1_000, _beat("a"))
    end = shop.broker.topics[state_topic(APP)].logs[0].end
    for attempt in (driver.check, lambda: driver.publish(shop.results()), shop.driver().check):
        with pytest.raises(BackfillRefused, match="members of the group are alive: a; stop them"):
            attempt()
    assert shop.broker.topics[state_topic(APP)].logs[0].end == end
    assert shop.broker.fenced == []
    assert shop.written() == {}


def test_members_that_were_killed_are_fenced_first() -> None:
    shop = Shop()
    shop.driver()
    book = LogBook()
    book.leader("p1").about("0_0", "0_1").member("a")
    shop.group.write(book)
    shop.publish()
    assert shop.broker.fenced == [producer_id("a")]
    assert not shop.state().members
    shop.check_published()


def test_members_that_start_while_the_group_is_held_do_not_stop_the_next_run() -> None:
    shop = Shop()
    with pytest.raises(Killed):
        shop.publish(Kill(effects() // 2))
    shop.group.hear(NOW_MS - 1_000, _beat("late"))
    shop.broker.members[APP] = ("late",)
    shop.workers_here.append("a worker runs on this machine")
    shop.driver().check()
    shop.publish()
    shop.check_published()


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_run_that_another_one_has_replaced_commits_nothing(*, is_ahead: bool) -> None:
    """`is_ahead`: the replaced run had written everything."""
    shop = Shop()

    def write(order: OutputOrder) -> list[OutputReport]:
        reports = shop.write(order, Kill()) if is_ahead else []
        shop.publish()
        return reports or shop.write(order, Kill())

    driver = shop.driver(write=write)
    with pytest.raises(StreamsError, match=r"taken over") as raised:
        driver.publish(shop.results())
    assert "stays held" not in str(raised.value)
    shop.check_published()


def test_a_run_replaced_before_its_commit_is_fenced() -> None:
    shop = Shop()
    earlier = KilledProducer(shop.broker, backfill_id(APP), Kill())
    with closing(earlier):
        earlier.init()
        earlier.begin()
        shop.publish()
        with pytest.raises(FencedError):
            earlier.commit(APP, dict.fromkeys(INPUTS, CommittedOffset(1, "")))
    shop.check_published()


def test_other_counts_than_computed_are_found_before_offsets_are_committed() -> None:
    shop = Shop()
    with pytest.raises(StreamsError, match=f"written to {TOTALS} are not those .* stays held"):
        shop.driver().publish(shop.results(totals=26))
    assert shop.committed() == {}
    assert shop.state().about.held
    shop.publish()
    shop.check_published()


def test_an_interrupted_run_reports_that_the_group_stays_held() -> None:
    shop = Shop()

    def write(order: OutputOrder) -> list[OutputReport]:
        raise KeyboardInterrupt(order.attempt)

    with pytest.raises(KeyboardInterrupt):
        shop.driver(write=write).publish(shop.results())
    assert shop.steps[-1].startswith(f"held: The group {APP} stays held until a run of `tidewheel")
    assert shop.state().about.held
    shop.publish()
    shop.check_published()


def test_a_refused_record_leaves_the_group_held() -> None:
    shop = Shop()
    refused = [b"v4"]
    shop.broker.refuse(TOTALS, lambda record: record.value in refused)
    with pytest.raises(StreamsError, match="stays held until a run of `tidewheel backfill`"):
        shop.publish()
    assert shop.committed() == {}
    refused.clear()
    shop.publish()
    shop.check_published()


def _commit(shop: Shop) -> None:
    FakeAdmin(shop.broker).alter_committed(APP, {INPUTS[0]: 1})


def _commit_of_a_shard(shop: Shop) -> None:
    FakeAdmin(shop.broker).alter_committed(offsets_group(APP, Shard.all_of(4)[1]), {INPUTS[0]: 1})


def _fill(shop: Shop) -> None:
    shop.broker.create_topic(CHANGELOG, 2)
    shop.broker.send(CHANGELOG, b"v", b"k", partition=1)


def _subscribe(shop: Shop) -> None:
    shop.broker.members[APP] = ("consumer-1",)


def _start_here(shop: Shop) -> None:
    shop.workers_here.append("a worker of shop runs on this machine")


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (_commit, "shop has committed offsets of orders-0; stop it and run `tidewheel reset shop`"),
        (_commit_of_a_shard, "committed offsets of orders-0/1of4; stop it"),
        (_fill, f"{CHANGELOG} of shop has records; .*under another application_id"),
        (_subscribe, "consumer group shop has 1 subscribed members: consumer-1; stop them first"),
        (_start_here, "a worker of shop runs on this machine"),
    ],
)
def test_an_application_that_has_begun_is_refused(
    prepare: Callable[[Shop], None], reason: str
) -> None:
    shop = Shop()
    prepare(shop)
    driver = shop.driver()
    with pytest.raises(BackfillRefused, match=reason):
        driver.check()
    with pytest.raises(BackfillRefused, match=f"^{APP} can't be backfilled now: .*{reason}"):
        driver.publish(shop.results())
    assert not shop.state().about.held
    assert shop.broker.records(TOTALS) == []


def test_a_run_that_another_has_replaced_does_not_hold_the_group() -> None:
    shop = Shop()
    shop.is_owner = False
    with pytest.raises(StreamsError, match="another run has taken over"):
        shop.publish()
    assert not shop.state().about.held
    assert CHANGELOG not in shop.broker.topics
    shop.is_owner = True
    shop.publish()
    shop.check_published()


def test_an_internal_topic_whose_records_were_deleted_is_empty() -> None:
    shop = Shop()
    _fill(shop)
    FakeAdmin(shop.broker).delete_records({TopicPartition(CHANGELOG, 1): 1})
    shop.driver().check()
    shop.publish()
    shop.check_published()


def test_an_application_that_only_reads_global_tables_has_nothing_to_commit() -> None:
    shop = Shop()
    builder = StreamsBuilder()
    builder.global_table("orders", key_serde=str, value_serde=str, store="orders")
    plan = plan_application(builder.build().spec(None), APP, {"orders": 2})
    results = Results(job="job", written={}, commits=dict)
    shop.driver(write=lambda _: [], plan=plan).publish(results)
    assert shop.is_over
    assert shop.committed() == {}
