"""Restores stores in a process of its own, by orders on standard input; killed or hindered as they say.

    {"config": {...}, "kinds": [...], "master": "local-cluster[2,1,1024]" | null, "stage": "..." | null, "marker": "/path"}

Without a master the executors' work is done in this process. With a stage, the driver kills itself there. With a master and a
marker, the first attempt of a task says so by that file and kills its own process; `stage` "executors" has all attempts wait
then, until somebody kills this program.
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

from state_stores.bulk_restore.location import SnapshotLocation
from state_stores.bulk_restore.spark_job import spark_session
from streams import StreamsConfig
from streams.broker.java import find_java
from streams.bulk.driver import BulkDriver, bulk_driver
from streams.bulk.executor_work import Counted, ExecutorWork
from streams.bulk.restoring import restore_stores
from tasks.state_manager import StateManager
from tests.bulk.changelogs import stores_of
from tests.streams.bulk.inline import inline_driver

#: Where a driver may kill itself: before the call, or after it, of a class's method, and of which call.
STAGES: Final[dict[str, tuple[type, str, int, bool]]] = {
    "everything read, nothing published": (SnapshotLocation, "publish", 1, True),
    "one store published": (SnapshotLocation, "publish", 1, False),
    "all published, old files not deleted": (SnapshotLocation, "delete_unreferenced", 2, True),
    "before the first ingest": (StateManager, "ingest", 1, True),
    "between two ingests": (StateManager, "ingest", 1, False),
    "after the last ingest": (StateManager, "ingest", 4, False),
}
_FOR_EVER_S: Final = 3_600


def main() -> None:
    """Carry out the order."""
    order: dict[str, Any] = json.load(sys.stdin)
    config = StreamsConfig(**order["config"])
    stores = stores_of(config.application_id, order["kinds"])
    if order["stage"] in STAGES:
        die_at(order["stage"])
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
            travelling=driver.travelling,
            keeper=driver.keeper,
            on_progress=None,
        )
        HinderedDriver.hinder = partial(
            die_once, order["marker"], waits=order["stage"] == "executors"
        )
        restore_stores(hindered, stores)


def die_at(stage: str) -> None:
    """Have this process kill itself at a stage."""
    owner, name, number, before = STAGES[stage]
    real = getattr(owner, name)
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def die_once(
    marker: str,
    function: Callable[..., Any],
    work: ExecutorWork,
    item: Any,
    count: Counted,
    *,
    waits: bool,
) -> Any:
    """Do an executor's work; the first attempt of all kills its process when it is done, before anybody hears of it."""
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


class HinderedDriver(BulkDriver):
    """A driver whose tasks are done through another function."""

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
        """Return what the function returns for each item."""
        return super().run(
            partial(type(self).hinder, function), work, items, step=step, total=total
        )


if __name__ == "__main__":
    main()
