"""Offsets that a backfill reads: each form of beginnings and ends, within the stable log."""

from pathlib import Path

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeTransactionalProducer
from tests.streams.group.fake_group import GroupAdmin
from tidewheel import ConfigError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.bulk.backfill.ends import parse_begins, ranges_of
from tidewheel.streams.bulk.batch.source_segments import OffsetRange
from tidewheel.streams.bulk.bootstrap.plan import InputOffsets, parse_input_offsets

ORDERS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
#: Offsets of each partition: deleted below START, in an open transaction from STABLE on.
START, STABLE, END = 2, 8, 10


@pytest.fixture
def admin() -> GroupAdmin:
    """Return a cluster whose record of offset N has time 100 * N."""
    broker = FakeBroker()
    broker.create_topic("orders", 2)
    for at in ORDERS:
        for number in range(STABLE):
            broker.send("orders", b"v", partition=at.partition, timestamp=100 * number)
    admin = GroupAdmin(broker)
    admin.delete_records(dict.fromkeys(ORDERS, START))
    producer = FakeTransactionalProducer(broker, "open")
    producer.init()
    producer.begin()
    for at in ORDERS:
        times = [100 * number for number in range(STABLE, END)]
        producer.produce_changelog(at, [b"k"] * 2, [b"v"] * 2, times)
    assert admin.stable_offsets(ORDERS) == dict.fromkeys(ORDERS, STABLE)
    assert admin.end_offsets(ORDERS) == dict.fromkeys(ORDERS, END)
    return admin


def _ranges(admin: GroupAdmin, until: str, **begins: str) -> list[tuple[int, int]]:
    ranges = ranges_of(
        admin,
        ORDERS,
        begins=parse_begins(begins, ["orders"]),
        until=parse_input_offsets(until),
    )
    assert list(ranges) == ORDERS
    return [(span.first, span.end) for span in ranges.values()]


@pytest.mark.parametrize(
    ("until", "end"),
    [
        ("latest", STABLE),
        ("earliest", START),
        ("timestamp:450", 5),
        ("timestamp:500", 5),
        ("timestamp:0", START),
        ("timestamp:900", STABLE),
        ("timestamp:99999", STABLE),
    ],
)
def test_ends_are_within_the_stable_log(admin: GroupAdmin, until: str, end: int) -> None:
    assert _ranges(admin, until) == [(START, end)] * 2


@pytest.mark.parametrize(
    ("begin", "first"),
    [
        ("earliest", START),
        ("latest", STABLE),
        ("timestamp:450", 5),
        ("timestamp:0", START),
        ("timestamp:99999", STABLE),
    ],
)
def test_beginnings_are_within_the_stable_log(admin: GroupAdmin, begin: str, first: int) -> None:
    assert _ranges(admin, "latest", orders=begin) == [(first, STABLE)] * 2


def test_beginnings_and_ends_of_a_file(admin: GroupAdmin, tmp_path: Path) -> None:
    (tmp_path / "begins.json").write_text('{"orders": {"0": 3, "1": 2}}')
    (tmp_path / "ends.json").write_text('{"orders": {"0": 3, "1": 7}, "others": {"0": 5}}')
    ends = f"file:{tmp_path / 'ends.json'}"
    assert _ranges(admin, ends, orders=f"file:{tmp_path / 'begins.json'}") == [(3, 3), (2, 7)]


def test_ends_of_another_application(admin: GroupAdmin) -> None:
    ends = {ORDERS[0]: 4, ORDERS[1]: 8, TopicPartition("others", 0): 1}
    ranges = ranges_of(admin, ORDERS, begins={}, until=ends)
    assert ranges == {
        ORDERS[0]: OffsetRange(first=2, end=4),
        ORDERS[1]: OffsetRange(first=2, end=8),
    }


@pytest.mark.parametrize(
    ("begins", "ends", "problem"),
    [
        ({}, {0: 9, 1: 5}, "the end 9 of orders-0 is outside the log, which has 2 to 8$"),
        ({}, {0: 3, 1: 1}, "the end 1 of orders-1 is outside the log, which has 2 to 8$"),
        ({}, {0: 5}, "none is given for orders-1$"),
        ({0: 6, 1: 2}, {0: 5, 1: 5}, "the begin 6 of orders-0 is not between .* 2 and the end 5$"),
        ({0: 1, 1: 2}, {0: 5, 1: 5}, "the begin 1 of orders-0 is not between .* 2 and the end 5$"),
        ({}, {0: 9, 1: 1}, "the end 9 of orders-0 .*; the end 1 of orders-1"),
    ],
)
def test_all_offsets_outside_the_log_are_named(
    admin: GroupAdmin, begins: dict[int, int], ends: dict[int, int], problem: str
) -> None:
    given = {"orders": parse_input_offsets({"orders": begins})} if begins else {}
    with pytest.raises(ConfigError, match=problem):
        ranges_of(admin, ORDERS, begins=given, until=parse_input_offsets({"orders": ends}))


@pytest.mark.parametrize("text", ["", "yesterday", "timestamp:", "timestamp:-1", "file:", "12"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"input offsets {text!r}"):
        parse_begins({"orders": text}, ["orders"])


def test_a_beginning_of_another_topic_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lines is not a source topic .* it reads orders, users"):
        parse_begins({"lines": "earliest"}, ["orders", "users"])


def test_no_beginnings() -> None:
    expected: dict[str, InputOffsets] = {}
    assert parse_begins(None, ["orders"]) == expected
