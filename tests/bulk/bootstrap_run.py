"""A run of `tidewheel bootstrap` that kills itself at a step; reads JSON from stdin."""

import json
import os
import signal
import sys

from tests.bulk.programs.holding import hold_writers
from tests.bulk.sums import STORE, sums
from tidewheel import StreamsConfig
from tidewheel.bulk import BulkStep, FrameSource, bootstrap


def main() -> None:
    given = json.load(sys.stdin)
    if given["hold_in"] is not None:
        hold_writers(given["hold_in"])
    config = StreamsConfig(**given["config"])

    def on_step(told: BulkStep) -> None:
        print(told.phase, flush=True)  # noqa: T201 - read by the test
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
