"""Process that restores stores by orders on stdin, and is killed or paused by them.

    {"config": {...}, "kinds": [...], "master": "local-cluster[2,1,1024]" | null, "stage": "..." | null,
     "marker": "/path", "go": "/path" | null}

Without a master, this process does the executors' work. With a stage, the driver kills itself
there. With a marker, each task's first attempt kills its own process; with stage "executors",
all attempts wait for a kill. With `go`, a snapshot comes first, and the restore follows that
file.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from tests.bulk.changelogs import stores_of
from tests.bulk.programs.dying import die_in_call
from tests.streams.bulk.inline import inline_driver
from tidewheel import StreamsConfig
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.spark.job import spark_session
from tidewheel.streams.broker.java import find_java
from tidewheel.streams.bulk.driver import BulkDriver, bulk_driver
from tidewheel.streams.bulk.executors import Counted, ExecutorWork
from tidewheel.streams.bulk.restore import restore_stores
from tidewheel.streams.bulk.snapshots import make_snapshots
from tidewheel.tasks.task.state_manager import StateManager

#: Class, method, number of the call, and before or after it.
STAGES: Final[dict[str, tuple[type, str, int, bool]]] = {
    "records read, snapshot unpublished": (SnapshotLocation, "publish", 1, True),
    "one store published": (SnapshotLocation, "publish", 1, False),
    "all published, old files not deleted": (SnapshotLocation, "delete_unreferenced", 2, True),
    "before the first ingest": (StateManager, "ingest", 1, True),
    "between two ingests": (StateManager, "ingest", 1, False),
    "after the last ingest": (StateManager, "ingest", 4, False),
}
_FOR_EVER_S: Final = 3_600
_LOOK_S: Final = 0.05


def main() -> None:
    order: dict[str, Any] = json.load(sys.stdin)
    config = StreamsConfig(**order["config"])
    stores = stores_of(config.application_id, order["kinds"])
    if order["stage"] in STAGES:
        owner, name, number, before = STAGES[order["stage"]]
        die_in_call(owner, name, number, before=before)
    if order["master"] is None:
        with inline_driver(config) as driver:
            restore_stores(driver, stores)
        return
    with (
        spark_session(name="apart", master=order["master"], java_home=find_java().home) as session,
        bulk_driver(config, session, what="test") as driver,
    ):
        hindered = HinderedDriver(
            config=driver.config,
            session=driver.session,
            admin=driver.admin,
            executor_settings=driver.executor_settings,
            keeper=driver.keeper,
            on_progress=None,
        )
        if order["go"] is not None:
            HinderedDriver.hinder = partial(stand_still_once, standing(order["marker"], "snapshot"))
            make_snapshots(hindered, stores, str(config.snapshot_location))
            while not Path(order["go"]).exists():
                time.sleep(_LOOK_S)
            HinderedDriver.hinder = partial(stand_still_once, standing(order["marker"], "restore"))
        else:
            HinderedDriver.hinder = partial(
                die_once, order["marker"], waits=order["stage"] == "executors"
            )
        restore_stores(hindered, stores)


def die_once(
    marker: str,
    function: Callable[..., Any],
    work: ExecutorWork,
    item: Any,
    count: Counted,
    *,
    waits: bool,
) -> Any:
    if waits:
        Path(marker).touch()
        time.sleep(_FOR_EVER_S)
    result = function(work, item, count)
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return result
    os.kill(os.getppid(), signal.SIGKILL)  # PySpark's daemon, with all its workers
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def standing(marker: str, job: str) -> str:
    return f"{marker}-{job}-"


def stand_still_once(
    marker: str, function: Callable[..., Any], work: ExecutorWork, item: Any, count: Counted
) -> Any:
    try:
        with Path(f"{marker}{function.__name__}").open("x", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    except FileExistsError:
        return function(work, item, count)
    time.sleep(_FOR_EVER_S)
    return None


class HinderedDriver(BulkDriver):
    hinder: ClassVar[Callable[..., Any]]

    def run(
        self,
        function: Callable[[ExecutorWork, Any, Counted], Any],
        work: ExecutorWork,
        items: Sequence[Any],
        *,
        step: str,
        total: int,
    ) -> list[Any]:
        return super().run(
            partial(type(self).hinder, function), work, items, step=step, total=total
        )


if __name__ == "__main__":
    main()
