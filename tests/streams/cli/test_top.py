"""`tidewheel top`: looks one after the other."""

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from streams.cli import main
from streams.cli.group_access import GroupAccess
from streams.errors import StreamsError
from streams.exit_codes import ExitCode
from streams.group.status import GroupStatus
from tests.rebalance.group_logs import LogBook, two_members
from tests.streams.group.fake_group import FakeGroup, use

ROOT = Path(__file__).parents[3]


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> LogBook:
    """A settled group of which `top` is asked."""
    book = two_members()
    group = FakeGroup()
    group.write(book)
    group.beats(book.now_ms, "a", "b")
    use(monkeypatch, group, book.now_ms)

    def sleep(_: float) -> bool:
        if book.leader_epoch == 1:
            book.leader("p2").member("c")
            group.write(book)
        return False

    monkeypatch.setattr("streams.cli.top._sleep", sleep)
    return book


@pytest.mark.usefixtures("book")
def test_each_look_is_a_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """And sees what came since the one before."""
    assert main(["top", "shop", "--count", "2"]) == ExitCode.OK
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("  !")]
    assert [line.split("  ", 1)[1] for line in lines] == [
        "shop RUNNING  members 2  tasks 4/4  learners 0  lag -  rate -  alarms 0",
        "shop IN_REBALANCE (ASSIGNING)  members 3  tasks 4/4  learners 0  lag -  rate -  alarms 1",
    ]
    assert lines[0].startswith("2026-11-21 12:00:01.000Z  ")


@pytest.mark.usefixtures("book")
def test_each_look_is_an_object_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    """As `status` prints it."""
    assert main(["top", "shop", "--count", "2", "--json"]) == ExitCode.OK
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [look["leader"] for look in looks] == ["p1", "p2"]


@pytest.mark.usefixtures("book")
def test_brokers_that_are_away_do_not_end_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, and looks again."""
    real: Callable[..., GroupStatus] = GroupAccess.look
    away = iter([True, False])

    def look(access: GroupAccess, *, ask_brokers: bool) -> GroupStatus:
        if next(away):
            raise StreamsError("list topics: nobody there")
        return real(access, ask_brokers=ask_brokers)

    monkeypatch.setattr(GroupAccess, "look", look)
    assert main(["top", "shop", "--count", "2"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "can't be read: list topics: nobody there"
    assert "shop IN_REBALANCE (ASSIGNING)" in lines[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0"], "--interval 0: at least 0.1 s"),
        (["--count", "0"], "--count 0: look at"),
    ],
)
def test_nonsense_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is asked."""
    assert main(["top", "shop", *arguments]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


_ON_A_TERMINAL = """
import pytest
from streams.cli import main
from tests.rebalance.group_logs import two_members
from tests.streams.group.fake_group import FakeGroup, use

book = two_members()
group = FakeGroup()
group.write(book)
group.beats(book.now_ms, "a", "b")
with pytest.MonkeyPatch.context() as patch:
    use(patch, group, book.now_ms)
    raise SystemExit(main(["top", "shop"]))
"""


@pytest.mark.slow
def test_q_leaves_the_live_view() -> None:
    """On a real terminal, which is as it was before afterwards."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_A_TERMINAL],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm",
            "COLUMNS": "140",
            "LINES": "40",
        },
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        shown = _read_until(ours, b"q to leave")
        assert b"RUNNING" in shown
        os.write(ours, b"q")
        rest = _read_until(ours, b"\x1b[?1049l")  # back from the alternate screen
        assert b"Traceback" not in rest
        assert process.wait(10) == ExitCode.OK
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)


def _read_until(descriptor: int, wanted: bytes) -> bytes:
    read = b""
    deadline_s = time.monotonic() + 20
    while wanted not in read and time.monotonic() < deadline_s:
        if select.select([descriptor], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # the other end is closed
                read += os.read(descriptor, 65_536)
    assert wanted in read, read.decode(errors="replace")
    return read
