"""A worker without tasks' work: connects to a watchdog and does what it is told on its standard input.

`python -m ... HELLO COMMAND...`: HELLO is a file with its first words, COMMAND the watchdog program. It prints each order
as JSON, after the time in monotonic nanoseconds. On standard input it takes `hold <seconds>` (keeps the GIL that long),
`fork`, `lease`, `close`.
"""

import ctypes
import os
import selectors
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    DropCopy,
    EndApplication,
    EndIncarnation,
    EraseRows,
    KeepCopy,
    MayClose,
    ReleaseTask,
    RunTask,
    TaskReleased,
    TaskRunning,
    UseTransactionalId,
    Welcome,
    WorkerClosed,
    WorkerLeaves,
    encode_line,
)
from tidewheel.streams.processes.watchdog.hello import decode_hello
from tidewheel.streams.processes.watchdog.link import WatchdogLink


def main() -> int:
    """Serve until told to close, or until the incarnation ends."""
    hello = decode_hello(Path(sys.argv[1]).read_bytes())
    hello = replace(hello, join=replace(hello.join, pid=os.getpid()))
    link = WatchdogLink.start(hello, woken=lambda: None, command=sys.argv[2:])
    _print(f"watchdog {link.watchdog_pid}")
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        link.progress()
        for order in link.take():
            _print(encode_line(order).decode().rstrip())
            if isinstance(order, MayClose):
                link.say(WorkerClosed())
            if isinstance(order, EndIncarnation | MayClose):
                link.close()
                return 0
            _obey(link, order)
        if not selector.select(0.01):
            continue
        match sys.stdin.readline().split():
            case ["hold", seconds]:
                _hold_gil(float(seconds))
                _print("held")
            case ["fork"]:
                _print(f"child {_forked()}")
            case ["lease"]:
                _print(f"lease {link.lease_left_s()}")
            case ["close"]:
                link.say(WorkerLeaves())
            case other:
                raise AssertionError(other)


def _obey(link: WatchdogLink, order: AnyOrder) -> None:
    match order:
        case RunTask():
            link.say(TaskRunning(task=order.task, task_epoch=order.task_epoch, input={}))
        case ReleaseTask():
            link.say(
                TaskReleased(
                    task=order.task, task_epoch=order.task_epoch, input={}, changelog_end={}
                )
            )
        case (
            Welcome()
            | KeepCopy()
            | DropCopy()
            | EraseRows()
            | UseTransactionalId()
            | EndIncarnation()
            | EndApplication()
            | MayClose()
        ):
            pass


def _forked() -> int:
    """Return a child that lives for a while and has whatever descriptors this process has."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid


def _hold_gil(seconds: float) -> None:
    """Keep every other thread of this process from running, as a long call into C may."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


def _print(line: str) -> None:
    sys.stdout.write(f"{time.monotonic_ns()} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
