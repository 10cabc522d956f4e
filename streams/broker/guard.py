"""Guard process: runs one child, which must not outlive the parent of the guard.

A script that needs the standard library only: `python -I -S guard.py PARENT_PID GRACE_MS LOCK_FD
ORPHANED_DIR COMMAND...`. It

- prints the child's pid on standard output, one line;
- stops the child (SIGTERM, after the grace time SIGKILL) at SIGTERM, at the end of its standard
  input, or when its parent is not PARENT_PID. In the last two cases the parent is dead, and
  ORPHANED_DIR (unless `-`) is deleted;
- exits with the child's exit code (128 + signal number).

PR_SET_PDEATHSIG acts when the thread that forked ends, so a parent with threads can't use it. The
guard has one thread and uses it: if the guard is killed, Linux kills the child.
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
_POLL_SECONDS = 1.0


class _Requests:
    stop = False


def _on_terminate(_number: int, _frame: FrameType | None) -> None:
    _Requests.stop = True


def _on_child(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the byte in the wake-up pipe ends the wait."""


def _wake_up_pipe() -> int:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _die_with_this_process() -> Callable[[], object] | None:
    """Return a function that, run in the child before exec, makes it die with this process."""
    if sys.platform != "linux":
        return None
    # Loaded before the fork: nothing may be loaded between fork and exec.
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(command: list[str], lock_fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - the command is an argument of this program
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        pass_fds=(lock_fd,),
        preexec_fn=_die_with_this_process(),  # noqa: PLW1509 - one thread only: no lock is taken at the fork
    )


def _wait(child: subprocess.Popen[bytes], parent: int, wake_up: int) -> bool:
    """Wait until the child ends or must be stopped; return True if the parent is dead."""
    lifeline = sys.stdin.fileno()
    while child.poll() is None and not _Requests.stop:
        readable, _, _ = select.select([lifeline, wake_up], [], [], _POLL_SECONDS)
        if wake_up in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_up, 512)
        # Another process that the parent forked may keep the pipe open after the parent's death, so
        # check the parent's pid too.
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
