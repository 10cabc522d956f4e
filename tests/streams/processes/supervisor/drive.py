"""Runs a supervisor over fake workers in its own process, for tests that send it signals.

`python -m tests.streams.processes.supervisor.drive TARGET...`: one worker per target.
"""

import logging
import sys

from tests.streams.processes.supervisor.scenario import FAKE_WORKER, QUICK, starts
from tidewheel.streams.processes.supervisor.supervisor import Supervisor


def main() -> int:
    logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stderr)
    return Supervisor(starts(*sys.argv[1:]), restart=QUICK, command=FAKE_WORKER).run()


if __name__ == "__main__":
    sys.exit(main())
