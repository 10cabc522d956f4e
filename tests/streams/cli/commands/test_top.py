"""Tests of `tidewheel top`."""

import contextlib
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rebalance.leader.group_logs import LogBook, two_members
from tests.streams.group.fake_group import FakeGroup, use
from tidewheel.streams.cli.app import main
from tidewheel.streams.cli.group_access import GroupAccess
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.group.status import GroupStatus

ROOT = Path(__file__).parents[4]

#: Leaves the alternate screen.
_BACK = b"\x1b[?1049l"
#: The limit is one second; a call that must not be awaited lasts four.
_AT_ONCE_S = 3.5


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> LogBook:
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

    monkeypatch.setattr("tidewheel.streams.cli.commands.top._sleep", sleep)
    return book


@pytest.mark.usefixtures("book")
def test_each_poll_is_a_line_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "shop", "--count", "2"]) == ExitCode.OK
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("  !")]
    assert [line.split("  ", 1)[1] for line in lines] == [
        "shop RUNNING  members 2  tasks 4/4  learners 0  lag -  rate -  alarms 0",
        "shop IN_REBALANCE (ASSIGNING)  members 3  tasks 4/4  learners 0  lag -  rate -  alarms 1",
    ]
    assert lines[0].startswith("2026-11-21 12:00:01.000Z  ")


@pytest.mark.usefixtures("book")
def test_each_poll_is_an_object_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "shop", "--count", "2", "--json"]) == ExitCode.OK
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [look["leader"] for look in looks] == ["p1", "p2"]


@pytest.mark.usefixtures("book")
def test_unavailable_brokers_do_not_end_top(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real: Callable[..., GroupStatus] = GroupAccess.read_status
    away = iter([True, False])

    def look(access: GroupAccess, *, ask_brokers: bool) -> GroupStatus:
        if next(away):
            raise StreamsError("list topics: nobody there")
        return real(access, ask_brokers=ask_brokers)

    monkeypatch.setattr(GroupAccess, "read_status", look)
    assert main(["top", "shop", "--count", "2"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "can't be read: list topics: nobody there"
    assert "shop IN_REBALANCE (ASSIGNING)" in lines[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0"], "--interval 0: at least 0.1 s"),
        (["--count", "0"], "--count 0: give at least"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "shop", *arguments]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


_ON_A_TERMINAL = """
import sys
import pytest
from confluent_kafka.admin import AdminClient
from tidewheel.streams.cli.app import main
from tidewheel.streams.cli.group_access import GroupAccess
from tests.rebalance.leader.group_logs import two_members
from tests.streams.group.fake_group import FakeGroup, use

book = two_members()
group = FakeGroup()
group.write(book)
group.beats(book.now_ms, "a", "b")
with pytest.MonkeyPatch.context() as patch:
    use(patch, group, book.now_ms)
    if sys.argv[1:]:
        look, client, looks = GroupAccess.read_status, AdminClient({"bootstrap.servers": sys.argv[1]}), []

        def stuck(access, **given):
            looks.append(look(access, **given))
            if len(looks) > 1:
                print("stuck", file=sys.stderr, flush=True)
                client.list_topics(timeout=20)
            return looks[-1]

        patch.setattr(GroupAccess, "read_status", stuck)
    raise SystemExit(main(["top", "shop", "--interval", "0.1"]))
"""

_TOP = """
import sys
from tidewheel.streams.cli.app import main

raise SystemExit(main(["top", "shop", "--bootstrap-servers", sys.argv[1]]))
"""


#: Ctrl-C works even if the tests run in the background, where it is ignored.
_HEARS_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


class Terminal:
    """A program on its own terminal."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.ours, theirs = pty.openpty()
        self.before = termios.tcgetattr(self.ours)
        self.shown = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HEARS_CTRL_C + program, *arguments],
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

    def see(self, wanted: bytes) -> bytes:
        """Read until a text is shown; return the new output."""
        read = _read_until(self.ours, wanted)
        self.shown += read
        return read

    def ctrl_c(self) -> tuple[int, float]:
        """Interrupt the program; return its exit code and the seconds until exit."""
        began_s = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(120)
        return code, time.monotonic() - began_s

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)


@pytest.fixture
def on_a_terminal() -> Iterator[Callable[..., Terminal]]:
    with contextlib.ExitStack() as opened:

        def start(program: str, *arguments: str) -> Terminal:
            terminal = Terminal(program, *arguments)
            opened.callback(terminal.close)
            return terminal

        yield start


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """A listener that never answers, like a stopped broker."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.slow
def test_q_leaves_the_live_view(on_a_terminal: Callable[..., Terminal]) -> None:
    terminal = on_a_terminal(_ON_A_TERMINAL)
    assert b"RUNNING" in terminal.see(b"q quit")
    os.write(terminal.ours, b"q")
    assert b"Traceback" not in terminal.see(_BACK)
    assert terminal.process.wait(120) == ExitCode.OK


_STDOUT_IS_A_CLOSED_TERMINAL = """
import io
import sys

class Closed(io.StringIO):
    def isatty(self):
        return True

    def write(self, text):
        raise BrokenPipeError

sys.stdout = Closed()
"""


@pytest.mark.slow
def test_a_reader_that_leaves_the_live_view_is_no_error() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _STDOUT_IS_A_CLOSED_TERMINAL + _ON_A_TERMINAL],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (ExitCode.OK, "", "")


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_poll(
    on_a_terminal: Callable[..., Terminal], silent_broker: str
) -> None:
    terminal = on_a_terminal(_ON_A_TERMINAL, silent_broker)
    terminal.see(b"stuck")
    code, took_s = terminal.ctrl_c()
    assert code == ExitCode.OK
    assert took_s < _AT_ONCE_S
    assert b"Traceback" not in terminal.see(_BACK)
    assert termios.tcgetattr(terminal.ours) == terminal.before


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_broker(
    on_a_terminal: Callable[..., Terminal], silent_broker: str
) -> None:
    terminal = on_a_terminal(_TOP, silent_broker)
    terminal.see(b"trying on")
    code, took_s = terminal.ctrl_c()
    assert code == ExitCode.OK
    assert took_s < _AT_ONCE_S


def _read_until(descriptor: int, wanted: bytes) -> bytes:
    read = b""
    deadline_s = time.monotonic() + 20
    while wanted not in read and time.monotonic() < deadline_s:
        if select.select([descriptor], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # the other end is closed
                read += os.read(descriptor, 65_536)
    assert wanted in read, read.decode(errors="replace")
    return read
