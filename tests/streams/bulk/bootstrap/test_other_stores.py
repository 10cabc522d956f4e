"""Loading one store does not miscount the others."""

from collections.abc import Mapping

import pytest

from tests.fakes.clients import FakeAdmin
from tests.streams.bulk.bootstrap.test_driver import CHANGELOG, FROM_END, ROWS, Shop
from tests.streams.bulk.local_job import Kill, Killed
from tests.streams.group.fake_group import APP
from tidewheel import Serdes, StreamsBuilder, StreamsConfig
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.bulk.bootstrap.driver import BootstrapRefused
from tidewheel.streams.bulk.bootstrap.other_stores import (
    OtherStore,
    moves_of,
    other_stores_of,
    refusal_of_moves,
)
from tidewheel.streams.bulk.bootstrap.plan import parse_input_offsets, target_of
from tidewheel.streams.dsl.kstream import KStream
from tidewheel.streams.errors import StreamsError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, plan_application
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

BESIDE = "shop-totals-changelog"
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
EARLIEST = parse_input_offsets("earliest")


def stream(builder: StreamsBuilder, topic: str) -> KStream[str, str]:
    return builder.stream(topic, key_serde=Serdes.string(), value_serde=Serdes.string())


def plan_of(builder: StreamsBuilder) -> ApplicationPlan:
    spec = builder.build(StreamsConfig(application_id=APP)).spec(None)
    return plan_application(spec, APP, {"orders": 2, "clicks": 2})


def beside(plan: ApplicationPlan, store: str) -> dict[str, set[str]]:
    """Return the other stores, with the topics that reach them."""
    found = other_stores_of(plan, APP, target_of(plan, APP, store))
    return {each.name: set(each.topics) for each in found}


def test_only_stores_of_the_same_input_count() -> None:
    builder = StreamsBuilder()
    orders = stream(builder, "orders").group_by_key()
    orders.count(store="counts")
    orders.count(store="totals")
    stream(builder, "clicks").group_by_key().count(store="clicked")
    plan = plan_of(builder)
    assert beside(plan, "counts") == {"totals": {"orders"}}
    assert beside(plan, "clicked") == {}
    found = other_stores_of(plan, APP, target_of(plan, APP, "counts"))[0]
    assert found.changelog == (TopicPartition(BESIDE, 0), TopicPartition(BESIDE, 1))


def test_stores_before_and_behind_repartition_topics_count() -> None:
    builder = StreamsBuilder()
    first = stream(builder, "orders").group_by_key().count(store="first")
    moved = first.to_stream().group_by(lambda key, count: key[0], key_serde=Serdes.string())
    moved.count(store="second")
    plan = plan_of(builder)
    assert beside(plan, "first") == {"second": {"orders"}}
    between = "shop-second-repartition"
    assert beside(plan, "second") == {"first": {"orders"}}
    assert {each.topic for each in target_of(plan, APP, "second").between} == {between}


def test_stores_that_read_one_repartition_topic_count() -> None:
    builder = StreamsBuilder()
    moved = stream(builder, "orders").repartition(name="moved", partitions=2).group_by_key()
    moved.count(store="counts")
    moved.count(store="totals")
    between = "shop-moved-repartition"
    assert beside(plan_of(builder), "counts") == {"totals": {"orders", between}}


def at(offset: int, *, ahead: int | None = None) -> CommittedOffset:
    """Return a commit; of two key ranges if one is ahead."""
    vector = Vector.at(offset) if ahead is None else Vector((0, 1 << 31), (offset, ahead))
    progress = Progress(
        task_epoch=0,
        transactional_id="shop-1",
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=vector,
    )
    return CommittedOffset(offset, progress.encode())


@pytest.mark.parametrize(
    ("committed", "new", "span"),
    [
        pytest.param({FIRST: at(7)}, 7, None, id="the same"),
        pytest.param({FIRST: at(7)}, 3, (3, 7), id="read again"),
        pytest.param({FIRST: at(7)}, 9, (7, 9), id="skipped"),
        pytest.param({FIRST: CommittedOffset(7, "another's")}, 3, (3, 7), id="foreign metadata"),
        pytest.param({FIRST: at(7, ahead=9)}, 7, (7, 9), id="a range ahead reads it again"),
        pytest.param({FIRST: at(1)}, 2, None, id="deleted records"),
        pytest.param({FIRST: at(1)}, 5, (2, 5), id="partly deleted"),
        pytest.param({}, 2, (2, 10), id="lost offsets"),
        pytest.param({SECOND: at(1)}, 2, None, id="never read, at its start"),
        pytest.param({SECOND: at(1)}, 6, (2, 6), id="never read, missed"),
    ],
)
def test_records_between_two_offsets_are_repeated_or_skipped(
    committed: Mapping[TopicPartition, CommittedOffset], new: int, span: tuple[int, int] | None
) -> None:
    (move,) = moves_of({FIRST: new}, committed, {FIRST: 2}, {FIRST: 10})
    start, end = move.span
    assert (move.span if start < end else None) == span


def refusal(
    committed: Mapping[TopicPartition, CommittedOffset], *topics: str, count: int = 1
) -> str | None:
    """Return the refusal of moving all committed partitions of orders to 0."""
    plan = plan_of_two()
    partitions = [TopicPartition("orders", number) for number in range(count)]
    moves = moves_of(
        dict.fromkeys(partitions, 0),
        committed,
        dict.fromkeys(partitions, 0),
        dict.fromkeys(partitions, 40),
    )
    one = OtherStore(name="totals", changelog=(), topics=frozenset(topics))
    return refusal_of_moves(target_of(plan, APP, "counts"), moves, [one])


def plan_of_two() -> ApplicationPlan:
    builder = StreamsBuilder()
    orders = stream(builder, "orders").group_by_key()
    orders.count(store="counts")
    orders.count(store="totals")
    return plan_of(builder)


def test_a_refusal_names_stores_offsets_and_the_next_step() -> None:
    told = refusal({FIRST: at(20)}, "orders") or ""
    assert told.startswith("store totals has content of the same input")
    assert "(orders-0: committed 20, new 0)" in told
    assert (
        "Either give the offsets that are committed (file:PATH), or run `tidewheel reset`" in told
    )
    apart = refusal({FIRST: at(20, ahead=30)}, "orders") or ""
    assert "orders-0: committed 20 (key ranges up to 30), new 0" in apart
    assert "Either run the application until it has processed its input" in apart
    assert "orders-0: nothing is committed, new 0" in (refusal({}, "orders") or "")
    assert refusal({FIRST: at(20)}, "clicks") is None


def test_a_refusal_of_many_partitions_is_short() -> None:
    committed = {TopicPartition("orders", number): at(20) for number in range(50)}
    told = refusal(committed, "orders", count=50) or ""
    assert "orders-7" in told
    assert "orders-8" not in told
    assert "and 42 more" in told


class SharedShop(Shop):
    """Another store counts the same input; half of it is committed."""

    def __init__(self) -> None:
        super().__init__("totals")
        self.broker.create_topic(BESIDE, 2, {"cleanup.policy": "compact"})

    def run_once(self, *offsets: int) -> None:
        """Leave the state of a run that reached these offsets."""
        self.broker.send(BESIDE, b"3", b"k", partition=0)
        for where, offset in zip((FIRST, SECOND), offsets, strict=False):
            FakeAdmin(self.broker).alter_committed(APP, {where: offset})


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("asked", [EARLIEST, FROM_END])
def test_a_store_is_not_loaded_at_the_cost_of_another(asked: object, replace: bool) -> None:
    shop = SharedShop()
    shop.run_once(3, 3)
    with pytest.raises(BootstrapRefused, match=r"store totals .*orders-0: committed 3, new [05]"):
        shop.load(asked=asked, replace=replace)  # type: ignore[arg-type] # as parametrized
    assert shop.content() == {}
    assert shop.committed() == {FIRST: 3, SECOND: 3}
    assert not shop.state().bootstraps
    assert shop.broker.fenced == []


def test_a_store_is_loaded_with_the_committed_offsets() -> None:
    shop = SharedShop()
    shop.run_once(3, 3)
    shop.load(asked=parse_input_offsets({"orders": {0: 3, 1: 3}}))
    assert len(shop.content()) == len(ROWS)
    assert shop.committed() == {FIRST: 3, SECOND: 3}


def test_stream_times_of_the_other_store_are_kept() -> None:
    times: list[tuple[int, tuple[int, ...]]] = []
    for offset in (3, 2):
        shop = SharedShop()
        if offset == 3:
            shop.run_once(3, 3)
        progress = Progress(
            task_epoch=0,
            transactional_id="shop-1",
            topic_id=shop.broker.topics["orders"].topic_id,
            topology_hash=b"topology",
            vector=Vector.at(3),
            stream_time_ms=77,
            operator_times_ms=(55, 66),
        )
        shop.broker.groups[APP][FIRST] = CommittedOffset(3, progress.encode())
        shop.load(asked=parse_input_offsets({"orders": {0: offset, 1: 3}}))
        at, metadata = shop.broker.groups[APP][FIRST]
        found = Progress.decode(metadata, committed_offset=at)
        assert found is not None
        assert (at, found.transactional_id) == (offset, "shop-bootstrap-counts")
        times.append((found.stream_time_ms, found.operator_times_ms))
    assert times == [(77, (55, 66)), (-1, ())]


def test_offsets_without_a_record_between_them_are_equal() -> None:
    shop = SharedShop()
    shop.run_once(5, 5)
    leader = shop.ports().producer("elsewhere")
    leader.init()
    leader.begin()
    leader.produce_changelog(FIRST, [b"k"], [b"v"], [0])
    leader.commit(APP, {})
    FakeAdmin(shop.broker).alter_committed(APP, {FIRST: 6})
    shop.load(asked=FROM_END)
    assert shop.committed() == {FIRST: 7, SECOND: 5}


def test_stores_of_a_new_application_are_loaded_one_after_the_other() -> None:
    shop = SharedShop()
    shop.load(asked=parse_input_offsets({"orders": {0: 2, 1: 4}}))
    shop.target = target_of(shop.plan, APP, "totals")
    with pytest.raises(StreamsError, match=r"store counts .*orders-0: committed 2, new 0"):
        shop.load(asked=EARLIEST)
    shop.load(asked=parse_input_offsets({"orders": {0: 2, 1: 4}}))
    assert shop.committed() == {FIRST: 2, SECOND: 4}
    assert shop.broker.records(BESIDE)
    assert shop.broker.records(CHANGELOG)


def test_lost_offsets_are_refused() -> None:
    shop = SharedShop()
    shop.run_once()
    with pytest.raises(StreamsError, match="orders-0: nothing is committed, new 0"):
        shop.load(asked=EARLIEST)


def test_a_killed_run_is_finished_with_its_accepted_offsets() -> None:
    shop = SharedShop()
    shop.run_once(5, 5)
    kill = Kill()
    shop_of_effects = SharedShop()
    shop_of_effects.run_once(5, 5)
    shop_of_effects.driver(kill=kill).run(FROM_END)
    with pytest.raises(Killed):
        shop.driver(kill=Kill(kill.count - 2)).run(FROM_END)
    assert shop.state().about.held
    shop.broker.send("orders", b"v", b"k", partition=0)
    assert shop.load(asked=FROM_END).again
    assert shop.committed() == {FIRST: 5, SECOND: 5}
