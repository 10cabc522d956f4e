"""Worker without tasks: connects to a watchdog and executes commands from standard input.

`python -m ... HELLO COMMAND...`: HELLO is a file with its first message, COMMAND the watchdog
program. It prints each order as JSON, after the time in monotonic nanoseconds. Commands:
`hold <seconds>` (keeps the GIL), `fork`, `lease`, `close`.
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
    LogLine,
    MayClose,
    ReleaseTask,
    RunTask,
    SetRest,
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
    hello = decode_hello(Path(sys.argv[1]).read_bytes())
    hello = replace(hello, join=replace(hello.join, pid=os.getpid()))
    link = WatchdogLink.start(hello, woken=lambda: None, command=sys.argv[2:])
    _print(f"watchdog {link.watchdog_pid}")
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        link.progress()
        for order in link.receive_orders():
            _print(encode_line(order).decode().rstrip())
            if isinstance(order, MayClose):
                link.send(WorkerClosed())
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
                link.send(WorkerLeaves())
            case other:
                raise AssertionError(other)


def _obey(link: WatchdogLink, order: AnyOrder) -> None:
    match order:
        case RunTask():
            link.send(TaskRunning(task=order.task, task_epoch=order.task_epoch, input={}))
        case ReleaseTask():
            link.send(
                TaskReleased(
                    task=order.task, task_epoch=order.task_epoch, input={}, changelog_end={}
                )
            )
        case (
            Welcome()
            | SetRest()
            | KeepCopy()
            | DropCopy()
            | EraseRows()
            | UseTransactionalId()
            | EndIncarnation()
            | EndApplication()
            | MayClose()
            | LogLine()
        ):
            pass


def _forked() -> int:
    """Return a short-lived child with all descriptors of this process."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid


def _hold_gil(seconds: float) -> None:
    """Block all other threads of this process, like a long C call."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


def _print(line: str) -> None:
    sys.stdout.write(f"{time.monotonic_ns()} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
