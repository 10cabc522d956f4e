"""Child processes, their ends, and message lines."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tidewheel.streams.processes.child import (
    ChildProcess,
    LineBuffer,
    LineReader,
    LineWriter,
    WakePipe,
    new_connection,
    open_pid_fd,
)

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")


def test_lines_are_joined_from_pieces() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader = LineReader(ours)
    with ours, theirs:
        assert reader.read() == ([], False)
        theirs.sendall(b"fir")
        assert reader.read() == ([], False)
        theirs.sendall(b"st\nsecond\nthi")
        assert reader.read() == ([b"first", b"second"], False)
        theirs.sendall(b"rd\n")
        theirs.close()
        assert reader.read() == ([b"third"], True)
        assert reader.read() == ([], True)


def test_lines_are_read_from_a_pipe() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    reader = LineReader(reading)
    os.write(writing, b"first\n\nsec")
    assert reader.read() == ([b"first"], False)
    os.write(writing, b"ond\n")
    os.close(writing)
    assert reader.read() == ([b"second"], True)
    os.close(reading)


def test_a_line_without_an_end_is_dropped() -> None:
    lines = LineBuffer(line_bytes_max=10)
    assert lines.feed(b"x" * 8) == []
    assert lines.feed(b"x" * 8) == []
    assert lines.feed(b"\nnext\n") == [b"next"]
    assert lines._part_bytes == 0


def test_bytes_that_a_socket_does_not_accept_are_sent_later() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        writer, reader = LineWriter(ours), LineReader(theirs)
        lines = [b"%d" % number * 1_000 for number in range(2_000)]
        accepted = [writer.send(line + b"\n") for line in lines]
        assert accepted[0]
        assert not accepted[-1]
        assert writer.has_unsent
        received: list[bytes] = []
        while not writer.flush() or len(received) < len(lines):
            received += reader.read()[0]
        assert received == lines
        assert not writer.has_unsent


def test_lines_are_dropped_above_the_limit() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        writer = LineWriter(ours, unsent_bytes_max=100)
        while writer.send(b"x" * 99_999 + b"\n"):
            pass
        waiting = len(writer._unsent)
        assert not writer.send(b"dropped\n")
        assert len(writer._unsent) == waiting


def test_waiting_bytes_are_sent_before_the_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        writer = LineWriter(ours)
        writer.send(b"x" * 2_000_000)
        received = bytearray()

        def read() -> None:
            while data := theirs.recv(65_536):
                received.extend(data)

        thread = threading.Thread(target=read)
        thread.start()
        writer.finish(10.0)
        thread.join(10.0)
        assert len(received) == 2_000_000


def test_sending_to_a_closed_socket_has_no_effect() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.close()
    writer = LineWriter(ours)
    assert writer.send(b"line\n")
    assert not writer.has_unsent
    writer.finish(1.0)
    writer.close()
    assert writer.send(b"line\n")


def test_a_wake_pipe_wakes_once() -> None:
    pipe = WakePipe()
    for _ in range(3):
        pipe.wake()
    assert select.select([pipe], [], [], 5.0)[0] == [pipe]
    pipe.drain()
    assert select.select([pipe], [], [], 0.0)[0] == []
    pipe.close()
    pipe.wake()


def test_a_child_has_its_own_session_and_reports_its_end() -> None:
    child = ChildProcess(SLEEPER)
    fd = open_pid_fd(child.pid)
    assert os.getsid(child.pid) == child.pid
    assert child.exit_code() is None
    child.kill_session()
    assert child.exit_code() == -signal.SIGKILL
    if fd is not None:
        assert select.select([fd], [], [], 5.0)[0] == [fd]
        os.close(fd)


def test_a_child_that_does_not_end_in_time_is_killed() -> None:
    child = ChildProcess(SLEEPER)
    started_s = time.monotonic()
    child.wait_or_kill(0.05)
    assert child.exit_code() == -signal.SIGKILL
    assert time.monotonic() - started_s < 30


def test_a_child_reads_its_standard_input() -> None:
    command = (sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.read()))")
    child = ChildProcess(command, stdin=subprocess.PIPE)
    child.write(b"three")
    child.close_stdin()
    assert child.wait() == 5
    child.close_stdin()


def test_a_connection_that_can_not_be_sent_on_is_closed() -> None:
    def fail() -> None:
        with new_connection() as (ours, theirs):
            ends.extend((ours, theirs))
            raise OSError("no")

    ends: list[socket.socket] = []
    with pytest.raises(OSError, match="no"):
        fail()
    assert [end.fileno() for end in ends] == [-1, -1]
