"""`tidewheel drain`: order, progress and outcome."""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from tests.rebalance.leader.group_logs import LogBook, two_members
from tests.streams.group.fake_group import APP, FakeGroup, use
from tidewheel.rebalance.model import MemberPhase
from tidewheel.rebalance.protocol.messages import DrainMember, decode_message
from tidewheel.streams.cli.app import main
from tidewheel.streams.cli.commands.drain import find_member
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import inbox_topic


class _Scene:
    """A group whose leader writes a step at each wait of `drain`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.book = two_members()
        self.group = FakeGroup()
        self.group.write(self.book)
        self.steps: Iterator[Callable[[LogBook], object]] = iter(())
        self._now_s = 0.0
        use(monkeypatch, self.group, self.book.now_ms)
        clock = SimpleNamespace(monotonic=lambda: self._now_s, sleep=self._sleep)
        monkeypatch.setattr("tidewheel.streams.cli.commands.drain.time", clock)

    def _sleep(self, seconds: float) -> None:
        self._now_s += seconds
        step = next(self.steps, None)
        if step is not None:
            step(self.book)
            self.group.write(self.book)

    @property
    def wishes(self) -> list[DrainMember]:
        told = [
            decode_message(record.value or b"")
            for record in self.group.broker.records(inbox_topic(APP))
        ]
        return [each for each in told if isinstance(each, DrainMember)]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> _Scene:
    return _Scene(monkeypatch)


def _leave_in_order(scene: _Scene) -> None:
    scene.steps = iter(
        [
            lambda book: book.member("b", MemberPhase.LEAVING),
            lambda book: book.released("0_1").grant("0_1", "a"),
            lambda book: book.released("0_3").grant("0_3", "a"),
            lambda book: book.member("b", MemberPhase.GONE),
        ]
    )


def test_L4_a_member_is_drained(scene: _Scene, capsys: pytest.CaptureFixture[str]) -> None:
    _leave_in_order(scene)
    assert main(["drain", "b", "shop", "--json"]) == ExitCode.OK
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["phase"], each["tasks"]) for each in steps] == [
        ("ACTIVE", ["0_1", "0_3"]),
        ("LEAVING", ["0_1", "0_3"]),
        ("LEAVING", ["0_3"]),
        ("LEAVING", []),
        ("GONE", []),
    ]
    assert [(wish.target, wish.drain_ms, wish.app) for wish in scene.wishes] == [("b", 25_000, APP)]
    assert scene.group.connections[0].closed


def test_text_output_shows_the_progress(
    scene: _Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _leave_in_order(scene)
    assert main(["drain", "b", "--application-id", "shop", "--timeout", "5m"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "2/2 tasks moved" in said
    assert "h-b (b) is gone." in said
    assert scene.wishes[0].drain_ms == 300_000


def test_the_drain_request_is_repeated_until_the_leader_accepts_it(scene: _Scene) -> None:
    scene.steps = iter(
        [*[lambda _: None] * 12, lambda book: book.member("b", MemberPhase.LEAVING),
         lambda book: book.member("b", MemberPhase.GONE)]
    )  # fmt: skip
    assert main(["drain", "b", "shop"]) == ExitCode.OK
    assert len(scene.wishes) == 3


def test_a_drain_request_without_an_answer_is_reported(
    scene: _Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drain", "b", "shop", "--timeout", "1s"]) == ExitCode.NOT_STOPPED_IN_TIME
    assert (
        "h-b (b) is still ACTIVE: no leader has answered; `tidewheel status` shows the leader"
        in (capsys.readouterr().err)
    )


def test_a_member_that_keeps_its_tasks_is_reported(
    scene: _Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.steps = iter([lambda book: book.member("b", MemberPhase.LEAVING)])
    assert main(["drain", "b", "shop", "--timeout", "1s"]) == ExitCode.NOT_STOPPED_IN_TIME
    assert (
        "h-b (b) is still LEAVING: it still has 0_1, 0_3; check its log" in capsys.readouterr().err
    )


def test_a_member_that_dies_during_the_drain_is_reported(
    scene: _Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.steps = iter(
        [
            lambda book: book.member("b", MemberPhase.LEAVING),
            lambda book: book.member("b", MemberPhase.FENCING),
            lambda book: book.member("b", MemberPhase.GONE),
        ]
    )
    assert main(["drain", "b", "shop"]) == ExitCode.FAILED
    assert "h-b (b) died before it had left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["c"],
            ExitCode.FAILED,
            "no live member is called 'c'; there are h-a (a), h-b (b) (`tidewheel status`",
        ),
        ([""], ExitCode.USAGE, "MEMBER is empty"),
        ([" "], ExitCode.USAGE, "MEMBER is empty"),
        (["b", "--timeout", "soon"], ExitCode.USAGE, "--timeout 'soon' is not a duration"),
        (["b", "--timeout=-1s"], ExitCode.USAGE, "--timeout '-1s' is negative"),
    ],
)
@pytest.mark.usefixtures("scene")
def test_invalid_arguments_are_refused(
    arguments: list[str], code: ExitCode, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drain", *arguments, "--application-id", "shop"]) == code
    assert message in capsys.readouterr().err


def test_a_unique_prefix_of_a_name_is_enough() -> None:
    book = two_members().member("alpha").member("alphabet").member("b", MemberPhase.GONE)
    assert find_member(book.group, "alpha").member == "alpha"
    assert find_member(book.group, "alphab").member == "alphabet"
    assert find_member(book.group, "a").member == "a"
    assert find_member(book.group, "h-alphabet (alphab)").member == "alphabet"
    assert find_member(book.group, "h-a").member == "a"
    with pytest.raises(StreamsError, match="several members: h-alpha"):
        find_member(book.group, "al")
    with pytest.raises(StreamsError, match=r"did you mean alphabet\?"):
        find_member(book.group, "alphabat")
