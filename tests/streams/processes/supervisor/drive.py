"""Runs a supervisor over fake workers in a process of its own, for tests that send it signals.

`python -m tests.streams.processes.supervisor.drive TARGET...`: one worker a target, with restarts after some ms.
"""

import logging
import sys

from tests.streams.processes.supervisor.scenario import FAKE_WORKER, QUICK, starts
from tidewheel.streams.processes.supervisor.supervisor import Supervisor


def main() -> int:
    """Run until the workers have ended; the exit code."""
    logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stderr)
    return Supervisor(starts(*sys.argv[1:]), restart=QUICK, command=FAKE_WORKER).run()


if __name__ == "__main__":
    sys.exit(main())
