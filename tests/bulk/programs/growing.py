"""A bulk driver whose executors pause in the middle of a changelog until they may continue."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidewheel.streams.bulk.driver import BulkDriver
from tidewheel.streams.bulk.executors import Counted, ExecutorWork

_POLL_S: Final = 0.05
_PATIENCE_S: Final = 300.0
_READING: Final = "reading"
_GO_ON: Final = "go-on"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingDriver(BulkDriver):
    """A driver; its executors write into `folder` that they read, and then wait for `go_on`."""

    folder: Path

    def run(
        self,
        function: Callable[[ExecutorWork, Any, Counted], Any],
        work: ExecutorWork,
        items: Sequence[Any],
        *,
        step: str,
        total: int,
    ) -> list[Any]:
        paused = partial(_paused, str(self.folder), function)
        return BulkDriver.run(self, paused, work, items, step=step, total=total)

    @property
    def is_reading(self) -> bool:
        return Path(self.folder, _READING).exists()

    def go_on(self) -> None:
        Path(self.folder, _GO_ON).touch()


def growing_driver(driver: BulkDriver, folder: Path) -> GrowingDriver:
    return GrowingDriver(
        config=driver.config,
        session=driver.session,
        admin=driver.admin,
        executor_settings=driver.executor_settings,
        keeper=driver.keeper,
        on_progress=None,
        folder=folder,
    )


def _paused(
    folder: str, function: Callable[..., Any], work: ExecutorWork, item: Any, count: Counted
) -> Any:
    def pausing_count(records: int) -> None:
        """Count the records of a poll; the executor has read these, and not yet the others."""
        Path(folder, _READING).touch()
        deadline_s = time.monotonic() + _PATIENCE_S
        while not Path(folder, _GO_ON).exists():
            assert time.monotonic() < deadline_s, "nothing let it continue"
            time.sleep(_POLL_S)
        count(records)

    return function(work, item, pausing_count)
