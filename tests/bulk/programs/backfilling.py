"""Process that runs a backfill by an order on stdin, and is killed by it or its executors.

    {"config": {...}, "source": "...", "sink": "...", "outputs": "topics", "master": "local[2]", "stage": "held"}
    {"config": {...}, "folder": "/path", "prefix": "...", "master": "local-cluster[2,1,1024]"}

The first order is of `shops.words`, the second of `batch_topologies.drawn`, whose functions kill
executors.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from tests.bulk.backfill.shops import words
from tests.bulk.batch_topologies import drawn
from tests.bulk.programs.dying import (
    die_in_call,
    die_while_writing,
    die_while_writing_files,
    kill_executor_while_writing,
)
from tidewheel import StreamsConfig
from tidewheel.bulk import backfill
from tidewheel.streams.bulk.batch.run import BatchRun
from tidewheel.streams.group.group_log_writer import GroupLogWriter

WRITING: Final = "while results are written"
#: In the order of a run; a method's class, its name, number of the call, and before or after it.
STAGES: Final[dict[str, tuple[type, str, int, bool] | None]] = {
    "between passes": (BatchRun, "run_pass", 2, True),
    "held, nothing written": (GroupLogWriter, "step", 1, False),
    WRITING: None,
    "closed, nothing committed": (GroupLogWriter, "step", 2, False),
    "committed, still held": (GroupLogWriter, "step", 3, True),
    "over, files not deleted": (GroupLogWriter, "step", 3, False),
}
WRITING_FILES: Final = "while output files are written"
#: Likewise, of a run that writes its outputs to files.
FILE_STAGES: Final[dict[str, tuple[type, str, int, bool] | None]] = {
    WRITING_FILES: None,
    "closed, nothing committed": (GroupLogWriter, "step", 2, False),
}


def main() -> None:
    order: dict[str, Any] = json.load(sys.stdin)
    config = StreamsConfig(**order["config"])
    if "folder" in order:
        folder = Path(order["folder"])
        kill_executor_while_writing(folder / "writing")
        backfill(
            drawn(folder, order["prefix"]),
            config,
            outputs="topics",
            work=folder / "work",
            master=order["master"],
        )
        return
    match (STAGES | FILE_STAGES)[order["stage"]]:
        case None if order["stage"] == WRITING_FILES:
            die_while_writing_files(partition=2)
        case None:
            die_while_writing()
        case owner, name, number, before:
            die_in_call(owner, name, number, before=before)
    topology = words(order["source"], order["sink"])
    backfill(topology, config, outputs=order["outputs"], master=order["master"])


if __name__ == "__main__":
    main()
