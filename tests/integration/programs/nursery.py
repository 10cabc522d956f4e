"""Forks processes that have a program's imports: `python -m … nursery MODULE`.

Standard input is a socket. Each byte carries three files: the child's standard input, its standard
error, and a pipe for its pid and exit code.
"""

import contextlib
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

_FILES: Final = 3


def main() -> int:
    program = importlib.import_module(sys.argv[1]).main
    requests = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        data, files, _, _ = socket.recv_fds(requests, 1, _FILES)
        if not data:
            return 0
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            return _keep(program, *files)
        for file in files:
            os.close(file)


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(program: Callable[[], int | None], orders: int, log: int, report: int) -> int:
    number = os.fork()
    if not number:
        os.dup2(orders, 0)
        os.dup2(log, 2)
        for each in (orders, log, report):
            os.close(each)
        return program() or 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):  # the test has ended
        os.write(report, b"%d\n" % number)
        os.close(orders)
        os.close(log)
        _, how = os.waitpid(number, 0)
        os.write(report, b"%d\n" % os.waitstatus_to_exitcode(how))
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
