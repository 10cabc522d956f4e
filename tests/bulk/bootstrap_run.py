"""A run of `tidewheel bootstrap` that ends itself at a step: `python -m tests.bulk.bootstrap_run` with JSON as its input."""

import json
import os
import signal
import sys

from streams import StreamsConfig
from streams.bulk import FrameSource, bootstrap
from streams.bulk.bootstrap_driver import Told
from tests.bulk.sums import STORE, sums


def main() -> None:
    """Run it; the whole session is killed before step `kill_at`."""
    given = json.load(sys.stdin)
    config = StreamsConfig(**given["config"])

    def on_step(told: Told) -> None:
        print(told.phase, flush=True)  # noqa: T201 - the test reads it
        if told.phase == given["kill_at"]:
            os.killpg(os.getpgid(0), signal.SIGKILL)

    bootstrap(
        sums(given["topic"], config),
        config,
        STORE,
        FrameSource(source=given["source"]),
        input_offsets=given["input_offsets"],
        master="local[2]",
        on_step=on_step,
    )


if __name__ == "__main__":
    main()
