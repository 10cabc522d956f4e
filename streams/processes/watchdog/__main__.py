"""The watchdog process: `python -m tidewheel.streams.processes.watchdog`, started by a program for its workers, not for people.

It ignores SIGINT and SIGTERM: it ends when the program and all its workers are gone, after it has said so to their group.
"""

import logging
import os
import signal
import socket
import sys

from tidewheel.streams.processes.watchdog.watchdog import Watchdog


def main(arguments: list[str] | None = None) -> int:
    """Look after workers, who come through the socket of `--intake FD`; the process's exit code."""
    # Without `argparse`, which takes longer to import than all of this module.
    _, intake = sys.argv[1:] if arguments is None else arguments
    intake_fd = int(intake)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A user's assignor runs in a child process, which is not to hold this open.
    os.set_inheritable(intake_fd, False)
    in_order = Watchdog(socket.socket(fileno=intake_fd)).run()
    logging.shutdown()
    # Threads may still wait for a cluster that does not answer; nothing of theirs is needed any more.
    os._exit(0 if in_order else 1)


if __name__ == "__main__":
    sys.exit(main())
