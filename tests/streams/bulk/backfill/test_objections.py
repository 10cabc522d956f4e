"""Topologies that a backfill refuses, and nodes whose results may differ from live workers'."""

from collections.abc import Callable
from functools import partial

import pytest

from tests.tasks.task.custom_stores import Totals
from tidewheel import (
    ConfigError,
    JoinWindows,
    KStream,
    Materialized,
    Processor,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
)
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.streams.bulk.backfill.objections import (
    REASONS,
    Difference,
    check_accepted,
    differences_of,
    objections_to_cluster,
    objections_to_topology,
)
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, plan_application

Make = Callable[[StreamsBuilder, KStream[str, str]], object]


def _topology(make: Make) -> Topology:
    builder = StreamsBuilder()
    make(builder, builder.stream("in", key_serde=str, value_serde=str))
    return builder.build()


def _plan(make: Make, partitions: int = 2) -> ApplicationPlan:
    topics = dict.fromkeys(("in", "users", "out"), partitions)
    return plan_application(_topology(make).spec(None), "app", topics)


def _no_schedule(_: TaskId) -> bool:
    return False


def _differences(
    make: Make,
    partitions: int = 2,
    *,
    has_cache: bool = True,
    has_schedule: Callable[[TaskId], bool] = _no_schedule,
) -> list[Difference]:
    plan = _plan(make, partitions)
    return list(differences_of(plan, has_cache=has_cache, has_schedule=has_schedule))


class _Count(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


def _by_value(lines: KStream[str, str]) -> KStream[str, str]:
    return lines.select_key(lambda _, value: value)


def _custom(builder: StreamsBuilder, lines: KStream[str, str]) -> None:
    builder.add_state_store(Stores.custom("mine", Totals))
    lines.process(_Count, stores=["mine"])


def _unlogged(_: StreamsBuilder, lines: KStream[str, str]) -> None:
    lines.group_by_key().count(store=Materialized("passing", logging=False))


def _reads_its_sink(builder: StreamsBuilder, lines: KStream[str, str]) -> None:
    lines.to("out", value_serde=str)
    builder.stream("out", key_serde=str, value_serde=str).group_by_key().count()


def _reads_its_sink_as_a_table_of_all(builder: StreamsBuilder, lines: KStream[str, str]) -> None:
    lines.to("out", value_serde=str)
    builder.global_table("out", key_serde=str, value_serde=str)


def _all_of_them(builder: StreamsBuilder, lines: KStream[str, str]) -> None:
    _custom(builder, lines)
    _unlogged(builder, lines)
    _reads_its_sink(builder, lines)


_IS_CUSTOM = "store mine is of your own class"
_IS_UNLOGGED = "store passing has no changelog"
_IS_READ = "writes to out, which the topology also reads"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (_custom, [_IS_CUSTOM]),
        (_unlogged, [_IS_UNLOGGED]),
        (_reads_its_sink, [_IS_READ]),
        (_reads_its_sink_as_a_table_of_all, [_IS_READ]),
        (_all_of_them, [_IS_CUSTOM, _IS_READ, _IS_UNLOGGED]),
    ],
)
def test_state_that_can_not_be_handed_over_is_refused(make: Make, expected: list[str]) -> None:
    found = list(objections_to_topology(_plan(make)))
    assert len(found) == len(expected)
    for text in expected:
        assert any(text in each for each in found), found


def _stateless(_: StreamsBuilder, lines: KStream[str, str]) -> None:
    lines.filter(bool).map_values(str.upper).to("out", value_serde=str)


def _repartitioned(_: StreamsBuilder, lines: KStream[str, str]) -> None:
    _by_value(lines).repartition(key_serde=str, value_serde=str).map_values(str.upper).to(
        "out", value_serde=str
    )


def _counts(_: StreamsBuilder, lines: KStream[str, str]) -> None:
    _by_value(lines).group_by_key(key_serde=str, value_serde=str).count(store="counts")


def _stateful(_: StreamsBuilder, lines: KStream[str, str]) -> None:
    grouped = lines.group_by_key()
    grouped.reduce(max)
    grouped.windowed_by(TimeWindows(10, grace=5)).count()
    grouped.windowed_by(SessionWindows(10, grace=5)).reduce(max)
    lines.process(_Count)


def _joins(builder: StreamsBuilder, lines: KStream[str, str]) -> None:
    users = builder.table("users", key_serde=str, value_serde=str)
    lines.left_join(users, lambda line, user: f"{line} {user}").to("out", value_serde=str)
    lines.join(lines, lambda one, two: one + two, within=JoinWindows(5, grace=5))


def _stored_without_changelog(builder: StreamsBuilder, _: KStream[str, str]) -> None:
    """A table's source topic is its changelog."""
    builder.table("users", key_serde=str, value_serde=str, store="users")


_PLAIN = [_stateless, _repartitioned, _counts, _stateful, _joins, _stored_without_changelog]


@pytest.mark.parametrize("make", _PLAIN)
def test_plain_topologies_are_accepted_as_they_are(make: Make) -> None:
    assert list(objections_to_topology(_plan(make))) == []
    assert _differences(make) == []


def test_processors_that_punctuate_by_wall_clock_are_named_with_their_line() -> None:
    asked: list[TaskId] = []

    def has_schedule(task_id: TaskId) -> bool:
        asked.append(task_id)
        return task_id.subtopology == 1

    def make(_: StreamsBuilder, lines: KStream[str, str]) -> None:
        quiet = lines.process(_Count, name="quiet")
        _by_value(quiet).repartition(key_serde=str, value_serde=str).process(_Count, name="ticking")

    (found,) = _differences(make, has_schedule=has_schedule)
    assert asked == [TaskId(0, 0), TaskId(1, 0)]
    assert (found.reason, found.node.split(" (")[0]) == ("wall-clock", "ticking")
    assert "test_objections.py:" in found.node
    assert str(found).startswith("wall-clock: ticking (")


def test_topologies_of_operators_alone_are_not_asked_for_schedules() -> None:
    def has_schedule(task_id: TaskId) -> bool:
        raise AssertionError(task_id)

    for make in (_counts, _joins):
        assert _differences(make, has_schedule=has_schedule) == []


def _changes_counted(lines: KStream[str, str], *, caching: bool = True) -> None:
    table = lines.group_by_key().count(store=Materialized("first", caching=caching))
    table.to_stream().group_by_key().count(store="second")


def _changes_counted_behind(lines: KStream[str, str]) -> None:
    table = lines.group_by_key().count(store="first")
    by_count = table.to_stream().select_key(lambda _, count: str(count))
    by_count.group_by_key(key_serde=str, value_serde=int).count(store="second")


def _tables_of_a_table(lines: KStream[str, str]) -> None:
    table = lines.group_by_key().count(store="first")
    grouped = table.group_by(lambda key, count: (str(count), key), key_serde=str, value_serde=str)
    grouped.count(store="keys")
    table.to_stream().to_table(store="copy")


def _changes_processed(lines: KStream[str, str]) -> None:
    table = lines.group_by_key().count(store="first")
    table.to_stream().map_values(str).process(_Numbered, name="numbered")


class _Numbered(Processor[str, str, str, str]):
    stores = (Stores.key_value("numbers", key_serde=str, value_serde=int),)

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


def _changes_written(lines: KStream[str, str]) -> None:
    lines.group_by_key().count(store="first").to_stream().to("out", value_serde=int)


def test_nodes_that_see_each_change_of_a_cached_table_are_named() -> None:
    (counted,) = _differences(lambda _, lines: _changes_counted(lines))
    assert counted.reason == "cache"
    assert counted.node.startswith("KSTREAM-AGGREGATE-")
    (numbered,) = _differences(lambda _, lines: _changes_processed(lines))
    assert (numbered.reason, numbered.node.split(" (")[0]) == ("cache", "numbered")
    (behind,) = _differences(lambda _, lines: _changes_counted_behind(lines))
    assert behind.reason == "cache"


def test_tables_below_a_cached_table_are_not_named() -> None:
    """Each change takes back the one before it, so only the last one counts."""
    found = _differences(lambda _, lines: _tables_of_a_table(lines), partitions=1)
    assert [each.reason for each in found] == []


def test_without_a_cache_or_state_below_it_no_node_is_named() -> None:
    for make, has_cache in (
        (partial(_changes_counted, caching=False), True),
        (_changes_counted, False),
        (_changes_processed, False),
        (_changes_written, True),
    ):
        assert _differences(lambda _, lines, make=make: make(lines), has_cache=has_cache) == []  # type: ignore[misc] # mypy does not infer it


def _reduced(lines: KStream[str, str]) -> None:
    _by_value(lines).group_by_key(key_serde=str, value_serde=str).reduce(max, store="newest")


def _windows_reduced(lines: KStream[str, str]) -> None:
    grouped = _by_value(lines).group_by_key(key_serde=str, value_serde=str)
    grouped.windowed_by(TimeWindows(10, grace=5)).reduce(max, store="windows")


def _tabled(lines: KStream[str, str]) -> None:
    _by_value(lines).repartition(key_serde=str, value_serde=str).to_table(store="table")


def _numbered_behind(lines: KStream[str, str]) -> None:
    repartitioned = _by_value(lines).repartition(key_serde=str, value_serde=str)
    repartitioned.map_values(str.upper).process(_Numbered, name="numbered")


_ORDERED = [_reduced, _windows_reduced, _tabled, _numbered_behind]


@pytest.mark.parametrize("make", _ORDERED)
def test_state_that_depends_on_the_order_across_partitions_is_named(
    make: Callable[[KStream[str, str]], None],
) -> None:
    (found,) = _differences(lambda _, lines: make(lines))
    assert found.reason == "order"
    assert "test_objections.py:" in found.node
    assert _differences(lambda _, lines: make(lines), partitions=1) == [], "one order only"


def test_all_inputs_and_topics_of_an_application_that_has_begun() -> None:
    inputs = [TopicPartition("in", number) for number in range(10)]
    committed, filled = objections_to_cluster("app", inputs, ["app-b", "app-a"])
    assert committed.startswith("app has committed offsets of in-0, in-1, ")
    assert "in-7 and 2 more; stop it and run `tidewheel reset app`" in committed
    assert filled.startswith("app-a, app-b of app have records; stop it")
    (one,) = objections_to_cluster("app", [], ["app-a"])
    assert one.startswith("app-a of app has records; stop it")
    assert list(objections_to_cluster("app", [], [])) == []


def test_only_known_reasons_may_be_accepted() -> None:
    assert check_accepted(REASONS) == frozenset(REASONS)
    assert check_accepted([]) == frozenset()
    with pytest.raises(
        ConfigError, match="accept names clock, time; it may name wall-clock, cache"
    ):
        check_accepted(["time", "order", "clock"])
