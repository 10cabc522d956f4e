"""The program `python -m tidewheel.streams.processes.restore_helper`, started by a worker."""

import sys

from tidewheel.streams.processes.restore_helper.priority import lower_priority


def main() -> int:
    """Lower the priority before all other imports, then execute orders; return the exit code."""
    lower_priority()
    # After `lower_priority`: this import takes 0.5 s of CPU time that running tasks need.
    from tidewheel.streams.processes.restore_helper.helper_main import main as run  # noqa: PLC0415

    return run()


if __name__ == "__main__":
    sys.exit(main())
