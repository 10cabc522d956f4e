"""`tidewheel state delete`: order, answer, and position of the tombstones."""

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.rebalance.leader.group_logs import LogBook, two_members
from tests.streams.group.fake_group import APP, FakeGroup, GroupAdmin, use
from tidewheel.rebalance.protocol.field_types import KEY_BYTES_MAX
from tidewheel.rebalance.protocol.messages import EraseKey, KeyErased, decode_message
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import inbox_topic
from tidewheel.streams.serdes.partitioning import partition_of

PARTITIONS = 4
#: Partition of key `alice`; all odd tasks are `b`'s.
ALICE = 1

PROGRAM = """
from tidewheel import *


class Nothing(StateStore):
    def restore(self, records): ...


class Keep(Processor):
    def process(self, record): ...


builder = StreamsBuilder()
orders = builder.stream("orders", key_serde=str, value_serde=str)
orders.group_by_key().count(store="counts")
counts = orders.group_by_key().windowed_by(TimeWindows(10, grace=0)).count(store="windows")
counts.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_stream().foreach(print)
builder.add_state_store(Stores.custom("custom", Nothing))
builder.add_state_store(Stores.key_value("unlogged", key_serde=str, value_serde=str, logging=False))
builder.add_state_store(Stores.key_value("numbers", key_serde=int, value_serde=str))
orders.process(Keep, stores=["custom", "unlogged", "numbers"])
payments = builder.stream("payments", key_serde=str, value_serde=str)
orders.outer_join(payments, lambda a, b: "", within=JoinWindows(10, grace=0), name="pairs")
builder.table("users", key_serde=str, value_serde=str, store="users").to_stream().foreach(print)
builder.global_table("countries", key_serde=str, value_serde=str, store="countries")
config = StreamsConfig(application_id="shop")
topology = builder.build(config)
"""


class _Scene:
    """A group that changes at each wait of the command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.book = two_members()
        self.group = FakeGroup()
        for topic in ("orders", "payments", "users", "countries"):
            self.group.broker.create_topic(topic, PARTITIONS)
        self.group.write(self.book)
        self.group.beats(self.book.now_ms, "a", "b")
        self.steps: Iterator[Callable[[], object]] = iter(())
        self._now_s = 0.0
        self.json = True
        use(monkeypatch, self.group, self.book.now_ms)
        clock = SimpleNamespace(monotonic=lambda: self._now_s, sleep=self._sleep)
        monkeypatch.setattr("tidewheel.streams.cli.commands.erase.time", clock)
        file = folder / f"shop_{secrets.token_hex(4)}.py"  # a module is loaded once per name
        file.write_text(PROGRAM, encoding="utf-8")
        self.target = f"{file}:topology"

    def _sleep(self, seconds: float) -> None:
        self._now_s += seconds
        step = next(self.steps, None)
        if step is not None:
            step()

    def log(self, write: Callable[[LogBook], object]) -> None:
        write(self.book)
        self.group.write(self.book)

    def answer(self, member: str, **values: object) -> None:
        self.group.hear(
            self.book.now_ms,
            KeyErased(
                app=APP,
                member=member,
                incarnation=f"{member}-1",
                request=self.wishes[-1].request,
                task=self.wishes[-1].task,
                **values,  # type: ignore[arg-type] # as each test gives them
            ),
        )

    def delete(self, *arguments: str, execute: bool = True) -> int:
        flags = [*(["--execute"] if execute else []), *(["--json"] if self.json else [])]
        return main(["state", "delete", self.target, *arguments, *flags])

    @property
    def wishes(self) -> list[EraseKey]:
        told = [
            decode_message(record.value or b"")
            for record in self.group.broker.records(inbox_topic(APP))
        ]
        return [each for each in told if isinstance(each, EraseKey)]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Scene:
    assert partition_of(b"alice", PARTITIONS) == ALICE
    return _Scene(monkeypatch, tmp_path)


def test_the_owner_receives_the_order_and_its_answer_is_printed(
    scene: _Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.steps = iter([lambda: None, lambda: scene.answer("b", rows=2, first=40, last=41)])
    assert scene.delete("counts", "alice") == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == {
        "store": "counts",
        "task": f"0_{ALICE}",
        "topic": "shop-counts-changelog",
        "partition": ALICE,
        "owner": "b",
        "rows": 2,
        "first_offset": 40,
        "last_offset": 41,
        "executed": True,
    }
    (wish,) = scene.wishes
    assert (wish.task, wish.task_epoch, wish.store) == (f"0_{ALICE}", 1, "counts")
    assert (wish.key, wish.tail) == (b"alice", 0)
    assert scene.group.connections[0].closed


def test_no_order_is_sent_without_execute(
    scene: _Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scene.delete("counts", "alice", execute=False) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["owner"], shown["executed"]) == ("b", False)
    assert (shown["topic"], shown["partition"]) == ("shop-counts-changelog", ALICE)
    assert not scene.wishes


@pytest.mark.parametrize("execute", [True, False])
def test_text_output_describes_the_deletion(
    scene: _Scene,
    execute: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene.json = False
    scene.steps = iter([lambda: scene.answer("b", rows=1, first=40, last=40)])
    assert scene.delete("counts", "alice", execute=execute) == ExitCode.OK
    words = " ".join(capsys.readouterr().out.split())
    assert ("offset 40" in words) is execute
    assert ("--execute" in words) is not execute


def test_windows_of_a_key_are_named_by_the_key_inside(scene: _Scene) -> None:
    scene.steps = iter([lambda: scene.answer("b", rows=1)])
    assert scene.delete("KTABLE-SUPPRESS-STATE-STORE-0000000004", "alice") == ExitCode.OK
    assert (scene.wishes[0].key, scene.wishes[0].tail) == (b"alice", 8)


def test_the_next_owner_receives_the_order_with_its_own_epoch(scene: _Scene) -> None:
    task = f"0_{ALICE}"
    scene.steps = iter(
        [
            *[lambda: None] * 6,
            lambda: scene.log(lambda book: book.revoke(task, "b", "a")),
            *[lambda: None] * 6,
            lambda: scene.log(lambda book: book.released(task).grant(task, "a")),
            lambda: None,
            lambda: scene.answer("a", rows=1, first=5, last=5),
        ]
    )
    assert scene.delete("counts", "alice") == ExitCode.OK
    assert [each.task_epoch for each in scene.wishes] == [1, 1, 2]
    assert len({each.request for each in scene.wishes}) == 1


@pytest.mark.parametrize(("found", "code"), [(1, ExitCode.OK), (0, ExitCode.FAILED)])
def test_all_partitions_can_be_searched(
    scene: _Scene, found: int, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.steps = iter(
        [
            lambda: scene.answer("a", rows=0),
            lambda: scene.answer("b", rows=0),
            lambda: scene.answer("a", rows=found, first=3, last=3),
            lambda: scene.answer("b", rows=0),
        ]
    )
    assert scene.delete("counts", "alice", "--everywhere") == code
    assert [each.task for each in scene.wishes] == ["0_0", "0_1", "0_2", "0_3"]
    told = [json.loads(line)["partition"] for line in capsys.readouterr().out.splitlines()]
    assert told == [2] * found


def test_an_answer_of_another_member_does_not_count(scene: _Scene) -> None:
    scene.steps = iter([lambda: scene.answer("a", rows=1), lambda: scene.answer("b", rows=0)])
    assert scene.delete("counts", "alice") == ExitCode.FAILED


@pytest.mark.parametrize(
    ("values", "word"),
    [({"rows": 0}, "no key 'alice'"), ({"problem": "no such store"}, "no such store")],
)
def test_a_failure_of_the_owner_is_an_error(
    scene: _Scene, values: dict[str, object], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.steps = iter([lambda: scene.answer("b", **values)])
    assert scene.delete("counts", "alice") == ExitCode.FAILED
    assert word in capsys.readouterr().err


def test_a_silent_owner_is_an_error_after_the_timeout(
    scene: _Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scene.delete("counts", "alice", "--timeout", "3s") == ExitCode.FAILED
    assert len(scene.wishes) == 3
    error = capsys.readouterr().err
    assert "b did not answer within 3" in error
    assert "upgrade" in error


def test_a_task_without_an_owner_is_an_error_after_the_timeout(
    scene: _Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.log(lambda book: book.released(f"0_{ALICE}"))
    assert scene.delete("counts", "alice") == ExitCode.FAILED
    assert not scene.wishes
    assert f"task 0_{ALICE} had no owner" in capsys.readouterr().err


def test_an_application_that_is_not_running_deletes_nothing(
    scene: _Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, scene.group, scene.book.now_ms + 60_000)
    assert scene.delete("counts", "alice") == ExitCode.FAILED
    assert "no worker of shop is running" in capsys.readouterr().err


def test_workers_with_fixed_assignment_accept_no_orders(
    scene: _Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(GroupAdmin, "fixed_workers", lambda *_: {"shop-0": "eu-3"})
    assert scene.delete("counts", "alice") == ExitCode.FAILED
    error = capsys.readouterr().err
    assert "shop-0" in error
    assert "fixed" in error


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["count", "alice"], "counts"),
        (["countries", "alice"], "topic countries"),
        (["users", "alice"], "topic users"),
        (["unlogged", "alice"], "logging=False"),
        (["custom", "alice"], "log_change"),
        (["pairs-outer-shared-join-store", "alice"], "grace"),
        (["numbers", "alice"], "no key of store numbers"),
        (["counts", "a" * (KEY_BYTES_MAX + 1)], "at most"),
        (["counts", "alice", "--partition", "4"], "partitions 0 to 3"),
        (["counts", "alice", "--partition", "1", "--everywhere"], "--everywhere"),
        (["counts", "alice", "--timeout", "soon"], "soon"),
        (["counts", "alice", "--timeout", "0"], "30s"),
    ],
)
def test_impossible_deletions_are_refused(
    scene: _Scene, arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scene.delete(*arguments) == ExitCode.USAGE
    assert word in capsys.readouterr().err
    assert not scene.wishes
