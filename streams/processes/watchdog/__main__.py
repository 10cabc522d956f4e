"""The program `python -m tidewheel.streams.processes.watchdog`, started for the workers of a host.

It ignores SIGINT and SIGTERM. When the host program and all its workers are gone, it reports their
end to the group and ends.
"""

import logging
import os
import signal
import socket
import sys

from tidewheel.streams.processes.watchdog.watchdog import Watchdog


def main(arguments: list[str] | None = None) -> int:
    """Serve the workers that connect through the socket `--intake FD`; return the exit code."""
    # No `argparse`: its import takes longer than all of this module.
    _, intake = sys.argv[1:] if arguments is None else arguments
    intake_fd = int(intake)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The child process of a user's assignor must not keep this descriptor open.
    os.set_inheritable(intake_fd, False)
    in_order = Watchdog(socket.socket(fileno=intake_fd)).run()
    logging.shutdown()
    # `os._exit`, because threads may still wait for an unresponsive cluster.
    os._exit(0 if in_order else 1)


if __name__ == "__main__":
    sys.exit(main())
