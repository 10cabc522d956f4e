"""Fake watchdog: accepts workers and answers each line with `PID`."""

import os
import selectors
import socket
import sys


def main() -> None:
    intake = socket.socket(fileno=int(sys.argv[sys.argv.index("--intake") + 1]))
    with selectors.DefaultSelector() as selector:
        selector.register(intake, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if key.fileobj is intake:
                    data, fds, _, _ = socket.recv_fds(intake, 1, 1)
                    for fd in fds:
                        selector.register(socket.socket(fileno=fd), selectors.EVENT_READ)
                    if not data:
                        selector.unregister(intake)
                    continue
                worker = key.fileobj
                assert isinstance(worker, socket.socket)
                if worker.recv(100):
                    worker.sendall(str(os.getpid()).encode())
                else:
                    selector.unregister(worker)


if __name__ == "__main__":
    main()
