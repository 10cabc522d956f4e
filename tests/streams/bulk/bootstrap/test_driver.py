"""Loading a store: results, refusals, and kills at any step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.fakes.clients import FakeAdmin
from tests.rebalance.leader.group_logs import LogBook, producer_id
from tests.streams.bulk.local_job import (
    FakeWriterPorts,
    Kill,
    Killed,
    KilledAdmin,
    KilledProducer,
    LocalJob,
    killed_group_log,
)
from tests.streams.group.fake_group import APP, FakeGroup
from tidewheel import Serdes, StreamsBuilder, StreamsError
from tidewheel.rebalance.leader.bootstrapping import BOOTSTRAP_HOLD, may_write
from tidewheel.rebalance.model import Shard, TopicPartition
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.messages import Beat
from tidewheel.rebalance.protocol.records import decode_record
from tidewheel.streams.bulk.bootstrap.driver import BootstrapDriver, BootstrapReport
from tidewheel.streams.bulk.bootstrap.other_stores import other_stores_of
from tidewheel.streams.bulk.bootstrap.plan import InputOffsets, parse_input_offsets, target_of
from tidewheel.streams.bulk.bootstrap.writer import SupersededError, WriteOrder, write_partition
from tidewheel.streams.errors import FencedError
from tidewheel.streams.group.group_log_writer import GroupLogWriter
from tidewheel.streams.kafka.admin.group_log import state_topic
from tidewheel.tasks.kafka.internal_topics import (
    ApplicationPlan,
    offsets_group,
    plan_application,
)
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

NOW_MS = 1_700_000_000_000
STORE, CHANGELOG = "counts", "shop-counts-changelog"
ROWS = [{"key": f"k{number}", "value": number} for number in range(40)]
FROM_END = parse_input_offsets("latest")


def plan_of(*stores: str) -> ApplicationPlan:
    """Return a topology that counts the same input in each of these stores."""
    builder = StreamsBuilder()
    stream = builder.stream("orders", key_serde=Serdes.string(), value_serde=Serdes.string())
    grouped = stream.group_by_key()
    for each in stores:
        grouped.count(store=each)
    return plan_application(builder.build().spec(None), APP, {"orders": 2})


class Shop:
    """An application on a fake cluster: two input partitions of five records, without state."""

    def __init__(self, *beside: str, shards: int = 1) -> None:
        self.group = FakeGroup(topics=False)
        self.broker = self.group.broker
        self.broker.create_topic("orders", 2)
        for number in range(10):
            self.broker.send("orders", b"v", b"k", partition=number % 2)
        self.broker.create_topic(CHANGELOG, 2, {"cleanup.policy": "compact"})
        self.attempts = 0
        self.plan = with_shards(plan_of(STORE, *beside), shards)
        self.target = target_of(self.plan, APP, STORE)

    def books(self, kill: Kill) -> GroupLogWriter:
        return killed_group_log(self.broker, kill, NOW_MS)

    def ports(self, kill: Kill | None = None) -> FakeWriterPorts:
        return FakeWriterPorts(self.broker, self.state, kill or Kill())

    def driver(
        self,
        rows: Sequence[Mapping[str, Any]] = ROWS,
        kill: Kill | None = None,
        order_by: str | None = None,
    ) -> BootstrapDriver:
        self.attempts += 1
        kill = kill or Kill()
        return BootstrapDriver(
            self.target,
            group_log=self.books(kill),
            admin=KilledAdmin(self.broker, kill),
            producer=lambda name: KilledProducer(self.broker, name, kill),
            job=LocalJob(self.target, rows, self.ports(kill), order_by),
            attempt=f"b{self.attempts}",
            topology_hash=b"topology",
            now_ms=lambda: NOW_MS,
            other_stores=other_stores_of(self.plan, APP, self.target),
            has_records=self.has_records,
        )

    def has_records(self, where: TopicPartition, start: int, end: int) -> bool:
        return any(
            each.partition == where.partition and start <= each.offset < end
            for each in self.broker.records(where.topic)
        )

    def load(
        self,
        rows: Sequence[Mapping[str, Any]] = ROWS,
        asked: InputOffsets = FROM_END,
        *,
        replace: bool = False,
        order_by: str | None = None,
    ) -> BootstrapReport:
        return self.driver(rows, order_by=order_by).run(asked, replace=replace)

    def state(self) -> Group:
        found = (decode_record(each.value) for each in self.broker.records(state_topic(APP)))
        return replay(record for record in found if record is not None)

    def content(self) -> dict[str, int]:
        """Return a restored store's content, with each key in its task's partition."""
        rows: dict[bytes, bytes] = {}
        for each in self.broker.records(CHANGELOG):
            assert each.key is not None
            rows.pop(each.key, None)
            if each.value is not None:
                rows[each.key] = each.value
        return {key.decode(): int.from_bytes(value) for key, value in rows.items()}

    def committed(self) -> dict[TopicPartition, int]:
        found = FakeAdmin(self.broker).committed(APP, None, stable=True)
        return {each: offset.offset for each, offset in found.items()}


def as_content(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {row["key"]: row["value"] for row in rows}


def test_a_store_is_loaded_and_the_group_continues_from_the_offsets() -> None:
    shop = Shop()
    report = shop.load()
    assert shop.content() == as_content(ROWS)
    assert shop.committed() == {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 5}
    assert (report.rows, report.deleted, report.again) == (40, 0, False)
    assert report.changelog_end == FakeAdmin(shop.broker).end_offsets(
        shop.target.changelog_partitions
    )
    assert shop.state().about.held == ""


def test_commit_metadata_contain_topic_id_and_topology_hash() -> None:
    shop = Shop()
    shop.load()
    where = TopicPartition("orders", 0)
    offset, metadata = FakeAdmin(shop.broker).committed(APP, [where], stable=True)[where]
    progress = Progress.decode(metadata, committed_offset=offset)
    assert progress is not None
    assert progress.topic_id == shop.broker.topics["orders"].topic_id
    assert (progress.topology_hash, progress.transactional_id) == (
        b"topology",
        "shop-bootstrap-counts",
    )


def effects(rows: Sequence[Mapping[str, Any]] = ROWS) -> int:
    kill = Kill()
    Shop().driver(rows, kill).run(FROM_END)
    return kill.count


@pytest.mark.parametrize("at", range(1, effects() + 1))
def test_no_reader_sees_half_a_store_after_a_kill_and_a_rerun_finishes(at: int) -> None:
    shop = Shop()
    with pytest.raises(Killed):
        shop.driver(kill=Kill(at)).run(FROM_END)
    shop.broker.send("orders", b"late", b"k", partition=0)
    group = shop.state()
    is_over = not group.about.held and "counts" in group.bootstraps
    if shop.content() and not is_over:
        assert group.about.held.startswith(BOOTSTRAP_HOLD)
    began = bool(group.bootstraps)
    other = [{"key": "k1", "value": 7}, {"key": "new", "value": 8}]
    report = shop.load(other, replace=is_over)
    assert shop.content() == as_content(other)
    assert report.again == (began and not is_over)
    assert shop.state().about.held == ""
    pinned = began and not is_over
    assert shop.committed()[TopicPartition("orders", 0)] == (5 if pinned else 6)


@pytest.mark.parametrize("first", range(1, effects() + 1, 3))
def test_a_third_run_finishes_after_two_kills(first: int) -> None:
    for second in range(1, effects(), 4):
        shop = Shop()
        for at in (first, second):
            with pytest.raises(Killed):
                shop.driver(kill=Kill(at)).run(FROM_END, replace=True)
        shop.load(ROWS[5:], replace=True)
        assert shop.content() == as_content(ROWS[5:])
        assert shop.state().about.held == ""


def test_an_attempt_paused_before_its_start_writes_nothing_after_the_load() -> None:
    shop = Shop()
    shop.load()
    late = WriteOrder(target=shop.target, attempt="b1", starts=(0, 0), deleted_at_ms=NOW_MS)
    with pytest.raises(SupersededError):
        write_partition(late, 0, [(b"k0", b"stale", 1)], shop.ports(), lambda _: None)
    assert shop.content() == as_content(ROWS)


def test_an_attempt_paused_while_writing_is_fenced() -> None:
    shop = Shop()
    driver = shop.driver()
    job = driver._job
    assert isinstance(job, LocalJob)
    attempts: list[Callable[[], object]] = []

    def write(order: WriteOrder) -> Any:
        paused = KilledProducer(shop.broker, shop.target.writer_id(0), Kill())
        paused.init()
        assert may_write(shop.state(), STORE, order.attempt)
        paused.begin()
        where = TopicPartition(CHANGELOG, 0)
        paused.produce_changelog(where, [b"k0"], [b"stale"], [1])

        def go_on() -> None:
            paused.produce_changelog(where, [b"k1"], [b"stale"], [1])
            paused.commit(APP, {})

        attempts.append(go_on)
        return LocalJob.write(job, order)

    job.write = write  # type: ignore[method-assign] # as above
    driver.run(FROM_END)
    with pytest.raises(FencedError):
        attempts[0]()
    assert shop.content() == as_content(ROWS)


def test_a_late_attempt_paused_after_its_check_is_fenced() -> None:
    shop = Shop()
    driver = shop.driver()
    job = driver._job
    assert isinstance(job, LocalJob)
    late = KilledProducer(shop.broker, shop.target.writer_id(0), Kill())

    def write(order: WriteOrder) -> Any:
        reports = LocalJob.write(job, order)
        late.init()
        assert may_write(shop.state(), STORE, order.attempt)
        return reports

    job.write = write  # type: ignore[method-assign] # as above
    driver.run(FROM_END)
    late.begin()
    late.produce_changelog(TopicPartition(CHANGELOG, 0), [b"k0"], [b"stale"], [1])
    with pytest.raises(FencedError):
        late.commit(APP, {})
    assert shop.content() == as_content(ROWS)


def test_the_next_attempt_reverts_commits_of_a_failed_attempt() -> None:
    shop = Shop()
    driver = shop.driver()
    job = driver._job
    assert isinstance(job, LocalJob)

    def write(order: WriteOrder) -> Any:
        first = [(b"other", b"stale", 1), (b"k0", b"stale", 1)]
        write_partition(order, 0, first, shop.ports(), lambda _: None)
        return LocalJob.write(job, order)

    job.write = write  # type: ignore[method-assign] # as above
    report = driver.run(FROM_END)
    assert shop.content() == as_content(ROWS)
    assert report.deleted in (1, 2), "`other`, and k0 unless it is of that partition"


def test_a_run_paused_until_another_one_finished_commits_nothing() -> None:
    shop = Shop()
    driver = shop.driver()
    job = driver._job
    assert isinstance(job, LocalJob)
    write = job.write

    def after_another(order: WriteOrder) -> Any:
        reports = write(order)
        shop.load(ROWS[:3], parse_input_offsets("earliest"))
        return reports

    job.write = after_another  # type: ignore[method-assign] # as above
    with pytest.raises(StreamsError, match=r"Another run .* has taken over") as raised:
        driver.run(FROM_END)
    assert "stays held" not in str(raised.value)
    assert shop.committed() == {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 0}
    assert shop.content() == as_content(ROWS[:3])


def test_a_load_is_refused_while_members_are_alive() -> None:
    shop = Shop()
    shop.books(Kill())
    book = LogBook()
    book.after(NOW_MS - book.now_ms)
    book.leader("p1").about("0_0", "0_1").member("a").member("b")
    shop.group.write(book)
    beat = Beat(app=APP, member="a", incarnation="a-1", leader_epoch=1, seq=1, state_offset=0)
    shop.group.hear(NOW_MS - 1_000, beat)
    before = shop.broker.topics[state_topic(APP)].logs[0].end
    with pytest.raises(StreamsError, match="members of the group are alive: a; stop them first"):
        shop.load()
    assert shop.broker.topics[state_topic(APP)].logs[0].end == before
    assert shop.broker.fenced == []


def test_members_that_were_killed_are_fenced_first() -> None:
    shop = Shop()
    shop.books(Kill())
    book = LogBook()
    book.leader("p1").about("0_0", "0_1").member("a")
    shop.group.write(book)
    shop.load()
    assert shop.broker.fenced[0] == producer_id("a")
    assert not shop.state().members


def test_content_is_replaced_only_with_the_replace_option() -> None:
    shop = Shop()
    shop.load()
    with pytest.raises(StreamsError, match="was loaded before and is complete"):
        shop.load(ROWS[:2])
    report = shop.load([*ROWS[:2], {"key": "new", "value": 1}], replace=True)
    assert shop.content() == {"k0": 0, "k1": 1, "new": 1}
    assert (report.rows, report.deleted) == (3, 38)
    again = shop.load(ROWS[:1], replace=True)
    assert (again.rows, again.deleted) == (1, 2), "keys that are gone are not deleted once more"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([*ROWS, {"key": "k3", "value": 1}], "several rows have the same key, such as 'k3'"),
        ([{"key": "k1", "value": "text"}], "the row of key 'k1' does not fit the store's serdes"),
        ([{"key": None, "value": 1}], "a row has no key"),
    ],
)
def test_bad_rows_are_reported_before_any_write(rows: list[dict[str, Any]], told: str) -> None:
    shop = Shop()
    with pytest.raises(StreamsError, match=told) as raised:
        shop.load(rows)
    assert "Nothing was written" in str(raised.value)
    assert shop.content() == {}
    assert shop.state().about.held == ""
    assert shop.load().rows == 40


@pytest.mark.parametrize("kind", [AssertionError, KeyboardInterrupt])
def test_a_failed_or_interrupted_check_releases_the_group(kind: type[BaseException]) -> None:
    shop = Shop()
    driver = shop.driver()
    told: list[str] = []
    driver._on_step = lambda each: told.append(each.text)

    def interrupted(existing: Mapping[int, tuple[int, int]], timestamp_ms: int) -> Any:
        raise kind(existing, timestamp_ms)

    driver._job.check = interrupted  # type: ignore[method-assign] # as above
    with pytest.raises(kind):
        driver.run(FROM_END)
    assert told[-1] == "Nothing was written"
    assert shop.state().about.held == ""
    assert shop.load().rows == 40


def test_an_error_before_the_check_releases_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop()
    driver = shop.driver()
    fence = KilledAdmin.fence

    def broken(admin: KilledAdmin, ids: Sequence[str]) -> None:
        if ids == [shop.target.writer_id(0), shop.target.writer_id(1)]:
            raise StreamsError("the coordinator is away")
        fence(admin, ids)

    with monkeypatch.context() as patched:
        patched.setattr(KilledAdmin, "fence", broken)
        with pytest.raises(StreamsError, match=r"coordinator is away\. Nothing was written"):
            driver.run(FROM_END)
    assert shop.state().about.held == ""
    assert shop.load().rows == 40


def test_an_interrupted_write_reports_that_the_group_stays_held() -> None:
    shop = Shop()
    driver = shop.driver()
    told: list[str] = []
    driver._on_step = lambda each: told.append(each.text)

    def interrupted(order: WriteOrder) -> Any:
        raise KeyboardInterrupt(order.attempt)

    driver._job.write = interrupted  # type: ignore[method-assign] # as above
    with pytest.raises(KeyboardInterrupt):
        driver.run(FROM_END)
    assert told[-1].startswith(
        "The group shop stays held until a run of `tidewheel bootstrap counts`"
    )
    assert shop.state().about.held
    assert shop.load().rows == 40


def test_the_last_row_of_a_key_by_a_column_may_win() -> None:
    shop = Shop()
    rows = [
        {"key": "a", "value": 3, "version": 3},
        {"key": "a", "value": 9, "version": 9},
        {"key": "a", "value": 5, "version": 5},
        {"key": "b", "value": 1, "version": None},
    ]
    shop.load(rows, order_by="version")
    assert shop.content() == {"a": 9, "b": 1}


def test_rows_without_a_value_are_skipped_and_counted() -> None:
    shop = Shop()
    report = shop.load([*ROWS[:3], {"key": "gone", "value": None}])
    assert (report.rows, report.left_out) == (3, 1)
    report = shop.load([{"key": "k0", "value": None}, *ROWS[1:3]], replace=True)
    assert shop.content() == {"k1": 1, "k2": 2}


def test_a_row_refused_by_the_cluster_is_reported_and_the_group_stays_held() -> None:
    shop = Shop()
    shop.broker.refuse(CHANGELOG, lambda record: record.key == b"k7")
    with pytest.raises(StreamsError, match="refuses a row of store counts") as raised:
        shop.load()
    assert "The group shop stays held until" in str(raised.value)
    assert shop.state().about.held
    rows = [row for row in ROWS if row["key"] != "k7"]
    shop.load(rows)
    assert shop.content() == as_content(rows)


def test_a_snapshot_is_made_while_the_group_is_held() -> None:
    shop = Shop()
    seen: list[tuple[bool, int]] = []

    def publish() -> None:
        seen.append((bool(shop.state().about.held), len(shop.content())))
        if len(seen) == 1:
            raise StreamsError("the place is full")

    for number in range(2):
        driver = shop.driver()
        driver._publish = publish
        if number:
            driver.run(FROM_END)
        else:
            with pytest.raises(StreamsError, match="the place is full"):
                driver.run(FROM_END)
    assert seen == [(True, 40), (True, 40)]
    assert not shop.state().about.held


def test_a_frame_with_other_rows_at_each_read_is_detected() -> None:
    shop = Shop()
    driver = shop.driver()
    job = driver._job
    assert isinstance(job, LocalJob)
    write = job.write

    def changed(order: WriteOrder) -> Any:
        job._sorted[0].pop()
        return write(order)

    job.write = changed  # type: ignore[method-assign] # as above
    with pytest.raises(StreamsError, match="another one each time"):
        driver.run(FROM_END)
    assert shop.state().about.held


def test_another_writer_to_the_changelog_is_detected() -> None:
    shop = Shop()
    driver = shop.driver()
    job = driver._job
    assert isinstance(job, LocalJob)
    write = job.write

    def disturbed(order: WriteOrder) -> Any:
        reports = write(order)
        shop.broker.send(CHANGELOG, b"x", b"x", partition=0)
        return reports

    job.write = disturbed  # type: ignore[method-assign] # as above
    with pytest.raises(StreamsError, match="another program has written"):
        driver.run(FROM_END)
    assert shop.state().about.held


SHARDS = Shard.all_of(2)
INPUTS = [TopicPartition("orders", number) for number in range(2)]


def check_shards_start_at(shop: Shop, offset: int) -> None:
    """Check the group of each shard, and the floor in the application's own."""
    admin = FakeAdmin(shop.broker)
    for shard in (Shard(), *SHARDS):
        committed = admin.committed(offsets_group(APP, shard), None, stable=True)
        assert {at: found.offset for at, found in committed.items()} == dict.fromkeys(
            INPUTS, offset
        )
        for found in committed.values():
            progress = Progress.decode(found.metadata, committed_offset=offset)
            assert progress is not None
            assert progress.shards == len(SHARDS)
            assert progress.vector == Vector.at(offset, shard.first_hash, shard.end_hash)


def test_K8_shards_of_a_loaded_store_start_at_the_given_offsets() -> None:
    shop = Shop(shards=len(SHARDS))
    shop.load(asked=parse_input_offsets({"orders": {0: 3, 1: 3}}))
    assert shop.content() == as_content(ROWS)
    check_shards_start_at(shop, 3)


def sharded_effects() -> int:
    kill = Kill()
    Shop(shards=len(SHARDS)).driver(ROWS, kill).run(FROM_END)
    return kill.count


@pytest.mark.parametrize("at", range(1, sharded_effects() + 1))
def test_K8_a_rerun_after_a_kill_commits_the_offsets_of_all_shards(at: int) -> None:
    shop = Shop(shards=len(SHARDS))
    with pytest.raises(Killed):
        shop.driver(kill=Kill(at)).run(FROM_END)
    committed = [offsets_group(APP, shard) for shard in (Shard(), *SHARDS)]
    admin = FakeAdmin(shop.broker)
    assert len({bool(admin.committed(group, None, stable=False)) for group in committed}) == 1
    shop.load(replace=True)
    assert shop.content() == as_content(ROWS)
    check_shards_start_at(shop, 5)


@pytest.mark.parametrize(("offsets", "refused"), [((5, 5), False), ((5, 3), True), ((3, 3), True)])
def test_K8_stores_of_shards_at_other_offsets_prevent_a_load(
    offsets: tuple[int, int], *, refused: bool
) -> None:
    shop = Shop("others", shards=len(SHARDS))
    other = "shop-others-changelog"
    shop.broker.create_topic(other, 2, {"cleanup.policy": "compact"})
    shop.broker.send(other, b"v", b"k", partition=0)
    admin = FakeAdmin(shop.broker)
    for shard, offset in zip(SHARDS, offsets, strict=True):
        admin.alter_committed(
            offsets_group(APP, shard),
            {where: CommittedOffset(offset, "") for where in INPUTS},
        )
    if not refused:
        shop.load()
        check_shards_start_at(shop, 5)
        return
    advice = "processed its input" if offsets[0] != offsets[1] else "give the offsets"
    with pytest.raises(StreamsError, match=rf"orders-0/1of2: committed 3, new 5.*{advice}"):
        shop.load()
