"""A restore helper: `python -m tidewheel.streams.processes.restore_helper`, started by a worker when it needs one, not for people."""

import sys

from tidewheel.streams.processes.restore_helper.priority import step_back


def main() -> int:
    """Let tasks that run go first, from the first import on; the process's exit code."""
    step_back()
    # Half a second of processor time beside those tasks.
    from tidewheel.streams.processes.restore_helper.program import main as run  # noqa: PLC0415

    return run()


if __name__ == "__main__":
    sys.exit(main())
