"""`tidewheel status`: output and exit codes."""

import itertools
import json
import re
from collections import Counter
from dataclasses import replace
from typing import NoReturn

import msgspec
import pytest

from tests.fakes.clients import FakeTransactionalProducer
from tests.rebalance.leader.group_logs import LogBook, scale_out, two_members
from tests.rebalance.leader.round_table import RoundTable, stateful
from tests.streams.group.fake_group import APP, FakeGroup, GroupAdmin, beat, use
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.records import encode_record, record_key
from tidewheel.rebalance.protocol.task_status import BlockingCoroutine, TaskStatus
from tidewheel.streams.cli.app import main
from tidewheel.streams.cli.group_access import access_to
from tidewheel.streams.cli.group_view import body_lines
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import state_topic
from tidewheel.tasks.kafka.open_transactions import OpenTransaction
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("FORCE_COLOR", "")


def cells_of(text: str) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> FakeGroup:
    book = two_members().member("c")
    book.target({"0_0": "a", "0_1": "c", "0_2": "a", "0_3": "b"}, "c joined")
    book.step({"0_1": ("c-1", 7)}, {"0_0": ("b-1", 8)}, parked=("0_3",)).after(2_000)
    group = FakeGroup()
    group.write(book)
    group.beats(book.now_ms - 100, "a", "b")
    active = TaskStatus(task="0_1", role="active", epoch=1, state="RUNNING", lag=1_234, rate=2_000)
    learner = TaskStatus(
        task="0_1",
        role="learner",
        epoch=7,
        state="RESTORING",
        changelog={"shop-counts-changelog-1": 750_000},
        ends={"shop-counts-changelog-1": 1_000_000},
        lag=250_000,
        rate=50_000.0,
    )
    group.hear(book.now_ms - 50, beat("b", active), beat("c", learner))
    use(monkeypatch, group, book.now_ms)
    return group


@pytest.mark.usefixtures("wide", "learning")
def test_S5_text_output_shows_phase_members_tasks_and_learners(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["status", "shop"]) == ExitCode.OK
    said = capsys.readouterr().out
    rows = cells_of(said)
    assert "shop  SYNC (RECONCILING)  3 members, 4 tasks" in said
    assert "led by p1, epoch 1, heard 100 ms ago\ntarget 2, step 2" in said
    assert ["h-b (b)", "-", "ACTIVE", "2", "0", "1", "50 ms ago", "2.9 s"] in rows
    assert ["0_1", "h-b (b)", "WARMING", "h-c (c)", "2.6 s", "1,234", "2,000"] in rows
    assert any(
        row[:3] == ["0_1", "h-c (c)", "FOLLOWING"] and row[4:7] == ["250,000", "50,000", "5.0 s"]
        for row in rows
    )
    assert "waiting for a place among the learners (max_warmup_replicas): 0_3" in said


@pytest.mark.usefixtures("learning")
def test_json_output_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--application-id", "shop", "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert told["phase"] == "SYNC (RECONCILING)"
    assert [each["member"] for each in told["members"]] == ["a", "b", "c"]
    assert told["learners"][0]["eta_s"] == 5.0
    assert told["alarms"] == []


def test_K8_status_and_history_name_shards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    del wide
    table = RoundTable()
    rows = tuple(msgspec.structs.replace(row, shards=4) for row in stateful(1))
    for name in ("a", "b"):
        table.start(name, protocol=(2, 2), shards=4, tasks=rows)
        table.run(20_000)
    group, book = FakeGroup(), LogBook()
    book.write(*table.log)
    group.write(book)
    use(monkeypatch, group, book.now_ms)
    main(["status", "shop", "--json"])
    told = json.loads(capsys.readouterr().out)
    names = [f"0_0/{number}of4" for number in range(4)]
    assert [task["task"] for task in told["tasks"]] == names
    assert Counter(task["member"] for task in told["tasks"]) == {"a": 2, "b": 2}
    main(["status", "shop"])
    text = capsys.readouterr().out
    assert all(name in text for name in names)
    assert main(["group", "history", "shop", "--json"]) == ExitCode.OK
    episodes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    moves = [move for episode in episodes for move in episode["moves"]]
    assert {move["task"] for move in moves if move["target"] == "b"} < set(names)


def test_N5_a_group_without_live_members_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    del wide
    book = scale_out()
    group = FakeGroup()
    group.write(book)
    use(monkeypatch, group, book.now_ms + 3_600_000)
    assert main(["status", "shop"]) == ExitCode.FAILED
    said = capsys.readouterr().out
    assert "shop  RUNNING  3 members, 4 tasks" in said
    assert "! there is no leader (p1: not heard)" in said
    assert "- !" in said
    assert all(connection.closed for connection in group.connections)


def test_an_application_without_a_group_is_an_error_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeGroup(topics=False), 0)
    assert main(["status", "shop", "--bootstrap-servers", "k:1"]) == ExitCode.FAILED
    assert "application shop has no group on k:1: there is no topic shop-group-state" in (
        capsys.readouterr().err
    )


def test_a_missing_application_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == ExitCode.USAGE
    assert "Give its MODULE:TOPOLOGY, its id, or --application-id" in capsys.readouterr().err


def test_only_committed_records_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = two_members()
    group = FakeGroup()
    group.write(book)
    group.beats(book.now_ms, "a", "b")
    held = two_members().about(held="not yet").entries[-1].record
    producer = FakeTransactionalProducer(group.broker, f"{APP}-leader")
    producer.init()
    producer.begin()
    producer.produce_changelog(
        TopicPartition(state_topic(APP), 0), [record_key(held)], [encode_record(held)], [0]
    )
    use(monkeypatch, group, book.now_ms)
    monkeypatch.setattr("tidewheel.streams.group.stalled_transactions.STALLED_S", 0.0)
    assert main(["status", "shop", "--json"]) == ExitCode.FAILED
    assert json.loads(capsys.readouterr().out)["phase"] == "RUNNING"
    producer.commit(APP, {})
    assert main(["status", "shop", "--json"]) == ExitCode.FAILED
    assert json.loads(capsys.readouterr().out)["phase"] == "NOT_READY"


def test_F3_status_ends_although_transactions_follow_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A busy exactly_once application has a new transaction open at every check."""
    book = two_members()
    group = FakeGroup()
    group.write(book)
    group.beats(book.now_ms, "a", "b")
    use(monkeypatch, group, book.now_ms)
    log = TopicPartition(state_topic(APP), 0)
    starts = itertools.count()

    def busy(_: object, __: object) -> dict[TopicPartition, OpenTransaction]:
        start = next(starts)
        assert start < 100, "the command must not check for ever"
        return {log: OpenTransaction(partition=log, start=start, end=start + 1)}

    monkeypatch.setattr(GroupAdmin, "open_transactions", busy)
    assert main(["status", "shop", "--json"]) == ExitCode.OK
    assert not json.loads(capsys.readouterr().out)["alarms"]


def told_by_the_first(row: TaskStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members report, the first one about a task."""
    book = two_members()
    group = FakeGroup()
    group.write(book)
    group.beats(book.now_ms - 100, "b")
    group.hear(book.now_ms - 50, beat("a", row))
    use(monkeypatch, group, book.now_ms)


def test_K2_status_and_top_name_the_record_that_blocks_a_range(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    stuck = TaskStatus(
        task="0_0",
        role="active",
        epoch=1,
        state="RUNNING",
        lag=7,
        rate=2_000,
        range_count=16,
        ranges=((0x2B, 4711, 61_000),),
    )
    told_by_the_first(stuck, monkeypatch)
    sentence = (
        "task 0_0 at h-a (a) processes a record: key hash 0000002b, offset 4711, for 1 min 1 s"
    )

    assert main(["status", "shop"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert sentence in said
    assert any(row[:2] == ["0_0", "h-a (a)"] and row[-1] == "16" for row in cells_of(said))

    assert main(["top", "shop", "--count", "1"]) == ExitCode.OK
    assert f"\n  {sentence}" in capsys.readouterr().out

    assert main(["status", "shop", "--json"]) == ExitCode.OK
    task = json.loads(capsys.readouterr().out)["tasks"][0]
    assert task["range_count"] == 16
    assert task["ranges"] == [{"key_hash": 43, "offset": 4711, "age_ms": 61_000}]


def test_K6_status_and_top_name_the_coroutine_that_blocks_a_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    told = BlockingCoroutine(
        function="Shop.process (shop.py:12)", ms=61_000, first_hash=1 << 30, node="shop",
        topic="orders", partition=3, offset=4711, key_hash=0x4000002B,
    )  # fmt: skip
    rows = TaskStatus(task="0_0", role="active", epoch=1, state="RUNNING", blocking=told)
    told_by_the_first(rows, monkeypatch)
    sentence = (
        "task 0_0 at h-a (a) blocks the event loop that key ranges share: Shop.process (shop.py:12), for 1 min 1 s, node shop, "
        "orders-3 offset 4711, key hash 4000002b"
    )

    assert main(["status", "shop"]) == ExitCode.OK
    assert sentence in capsys.readouterr().out
    assert main(["top", "shop", "--count", "1"]) == ExitCode.OK
    assert f"\n  {sentence}" in capsys.readouterr().out
    assert main(["top", "shop", "--count", "1", "--ranges"]) == ExitCode.OK
    assert f"\n  {sentence}" in capsys.readouterr().out
    assert main(["status", "shop", "--json"]) == ExitCode.OK
    tasks = {each["task"]: each for each in json.loads(capsys.readouterr().out)["tasks"]}
    assert tasks["0_1"]["blocked"] is None
    assert tasks["0_0"]["blocked"] == {
        "function": "Shop.process (shop.py:12)",
        "age_ms": 61_000,
        "first": "40000000",
        "node": "shop",
        "topic": "orders",
        "partition": 3,
        "offset": 4711,
        "key_hash": 0x4000002B,
    }


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> FakeGroup:
    """A group with task 0_1 in two committed ranges."""
    book = two_members().about(*(f"0_{number}" for number in range(4)), partitions={"orders": 2})
    group = FakeGroup()
    group.write(book)
    group.beats(book.now_ms - 100, "a")
    told = TaskStatus(
        task="0_1", role="active", epoch=1, state="RUNNING", input={"orders-1": 900}, range_count=2,
        busiest=((0x80000000, 97),),
    )  # fmt: skip
    group.hear(book.now_ms - 50, beat("b", told))
    commit(group, 0x80000000, 900)
    use(monkeypatch, group, book.now_ms)
    return group


def commit(group: FakeGroup, second: int, offset: int) -> None:
    """Commit partition 1 of orders: the first range is at 400."""
    progress = Progress(
        task_epoch=1,
        transactional_id=f"{APP}-b-0",
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=Vector((0, second), (400, offset)),
    )
    group.broker.groups[APP][TopicPartition("orders", 1)] = CommittedOffset(400, progress.encode())


MAP = [
    {
        "task": "0_1",
        "topic": "orders",
        "partition": 1,
        "hash": "crc32",
        "committed": 400,
        "ranges": [
            {"first": "00000000", "last": "7fffffff", "offset": 400, "ahead": 0, "busy": None},
            {"first": "80000000", "last": "ffffffff", "offset": 900, "ahead": 500, "busy": 97},
        ],
    }
]


@pytest.mark.usefixtures("wide", "cut")
def test_K2_status_shows_the_map_of_key_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "shop", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["key_ranges"] == MAP

    assert main(["status", "shop", "--ranges"]) == ExitCode.OK
    said = capsys.readouterr().out
    rows = cells_of(said)
    at = rows.index(["0_1", "orders-1", "00000000-7fffffff", "400", "0", "-"])
    assert rows[at + 1] == ["80000000-ffffffff", "900", "500", "97 %"]

    assert main(["status", "shop"]) == ExitCode.OK
    assert "key hashes" not in capsys.readouterr().out


@pytest.mark.usefixtures("wide", "learning")
def test_status_reports_that_no_ranges_are_committed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "shop", "--ranges"]) == ExitCode.OK
    assert "no key ranges: nothing has been committed yet" in capsys.readouterr().out


def test_K2_top_reads_the_map_at_every_poll(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cut: FakeGroup
) -> None:
    def sleep(_: float) -> bool:
        commit(cut, 0x40000000, 1_000)
        return False

    monkeypatch.setattr("tidewheel.streams.cli.commands.top._sleep", sleep)
    assert main(["top", "shop", "--count", "2", "--json"]) == ExitCode.OK
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["key_ranges"] == MAP
    assert [each["last"] for each in second["key_ranges"][0]["ranges"]] == ["3fffffff", "ffffffff"]
    assert second["key_ranges"][0]["ranges"][1]["offset"] == 1_000

    assert main(["top", "shop", "--count", "1", "--ranges"]) == ExitCode.OK
    line = "task 0_1 range 40000000-ffffffff of orders-1: offset 1000, 600 ahead"
    assert f"\n  {line}\n" in capsys.readouterr().out


def test_K2_ranges_that_cannot_be_read_any_more_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cut: FakeGroup
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise StreamsError("not allowed to read offsets")

    def sleep(_: float) -> bool:
        monkeypatch.setattr(cut.connections[-1].admin, "committed", refuse)
        return False

    monkeypatch.setattr("tidewheel.streams.cli.commands.top._sleep", sleep)
    assert main(["top", "shop", "--count", "2", "--json"]) == ExitCode.OK
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["key_ranges"] == MAP
    assert second["key_ranges"] is None
    assert [each["name"] for each in second["alarms"]] == ["not-checked"]


def test_K2_on_a_screen_the_most_uneven_partitions_come_first(cut: FakeGroup, wide: None) -> None:
    del wide
    with access_to(StreamsConfig(application_id=APP, bootstrap_servers="k:1")) as access:
        access.shows_ranges = True
        status = access.read_status()
    assert status.key_ranges is not None
    (uneven,) = status.key_ranges
    even = replace(uneven, partition=0, task="0_0", ranges=uneven.ranges[:1])
    status = replace(status, key_ranges=(even, uneven))

    def order(sort: str) -> list[str]:
        text = "\n".join(line.plain for line in body_lines(status, 160, sort=sort))
        return re.findall(r"orders-\d", text)

    assert order("task") == ["orders-0", "orders-1"]
    assert order("urgency") == ["orders-1", "orders-0"]
    assert all(connection.closed for connection in cut.connections)
