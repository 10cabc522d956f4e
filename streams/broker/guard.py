"""Runs one child and makes sure that it does not outlive the process that wanted it.

This file is run as a script by the interpreter that wants the child, with nothing but the standard
library: `python -I -S guard.py PARENT_PID GRACE_MS LOCK_FD ORPHANED_DIR COMMAND...`. It

- prints the child's pid on standard output, one line;
- stops the child (SIGTERM, after the grace time SIGKILL) when it is sent SIGTERM itself, when its
  standard input ends or when its parent is another one than PARENT_PID: both mean the parent is
  gone, and then ORPHANED_DIR (unless `-`) is deleted too;
- leaves with the child's exit code (128 + the signal's number if a signal ended it).

Why not ask the kernel for the child's death directly in the parent: PR_SET_PDEATHSIG looks at the
*thread* that forked, so a broker started by a short-lived thread would be killed under the feet of
everyone else. Here there is only one thread, so the guard may and does use it for the last gap: if
the guard itself is killed, Linux kills the child.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from types import FrameType

_PR_SET_PDEATHSIG = 1
_LOOK_AROUND_SECONDS = 1.0


class _Wishes:
    """What signals asked for; a handler only sets this, the loop acts."""

    stop = False


def _on_terminate(_number: int, _frame: FrameType | None) -> None:
    _Wishes.stop = True


def _on_child(_number: int, _frame: FrameType | None) -> None:
    """Nothing: the signal's byte in the wake-up pipe is what ends the wait."""


def _wake_up_pipe() -> int:
    """A descriptor that becomes readable with every signal."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _die_with_this_process() -> Callable[[], object] | None:
    """What the child does before it becomes the command; only Linux has such a thing."""
    if sys.platform != "linux":
        return None
    # Loaded before the fork, as between fork and exec nothing may be loaded.
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(command: list[str], lock_fd: int) -> subprocess.Popen[bytes]:
    """The child, which Linux ends if this process dies."""
    return subprocess.Popen(  # noqa: S603  # the command is what this program is for
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        pass_fds=(lock_fd,),
        preexec_fn=_die_with_this_process(),  # noqa: PLW1509  # one thread only: nothing can be held at the fork
    )


def _wait(child: subprocess.Popen[bytes], parent: int, wake_up: int) -> bool:
    """Until the child ends or shall end; True if the parent is gone."""
    lifeline = sys.stdin.fileno()
    while child.poll() is None and not _Wishes.stop:
        readable, _, _ = select.select([lifeline, wake_up], [], [], _LOOK_AROUND_SECONDS)
        if wake_up in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_up, 512)
        # A forked sibling may hold the other end of the lifeline: so the parent's pid counts too.
        if (lifeline in readable and not os.read(lifeline, 512)) or os.getppid() != parent:
            return True
    return False


def _stop(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    child.terminate()
    try:
        child.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def main(arguments: list[str]) -> int:
    """Run the command until it ends or shall end; the exit code."""
    parent, grace_ms, lock_fd = (int(argument) for argument in arguments[:3])
    orphaned_dir, command = arguments[3], arguments[4:]
    wake_up = _wake_up_pipe()
    signal.signal(signal.SIGTERM, _on_terminate)
    signal.signal(signal.SIGCHLD, _on_child)
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    child = _start(command, lock_fd)
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{child.pid}\n")
        sys.stdout.flush()
    orphaned = _wait(child, parent, wake_up)
    if child.poll() is None:
        _stop(child, grace_ms / 1000)
    if orphaned and orphaned_dir != "-":
        shutil.rmtree(orphaned_dir, ignore_errors=True)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
