"""Task status rows for heartbeats: changed rows, and periodically all, within a size limit."""

from typing import Final

import msgspec

from tidewheel.rebalance.protocol.task_status import TaskStatus

#: Most bytes of rows in one heartbeat; further rows wait for the next.
ROWS_BYTES_MAX: Final = 1_800

FULL_EVERY_BEATS: Final = 10

_ENCODER: Final = msgspec.json.Encoder()


class StatusRows:
    """The worker's status rows, one per task, and their unsent changes.

    >>> rows = StatusRows()
    >>> rows.replace((TaskStatus(task="0_1", role="active", epoch=3, state="RUNNING"),))
    >>> [row.task for row in rows.next_rows()[0]], rows.next_rows()
    (['0_1'], ((), False))
    """

    def __init__(self) -> None:
        self._rows: dict[str, TaskStatus] = {}
        self._due: dict[str, None] = {}
        self._beats = 0

    def replace(self, rows: tuple[TaskStatus, ...]) -> None:
        fresh = {row.task: row for row in rows}
        for task, row in fresh.items():
            if self._rows.get(task) != row:
                self._due[task] = None
        self._rows = fresh

    def next_rows(self) -> tuple[tuple[TaskStatus, ...], bool]:
        """Return the next heartbeat's rows, and True if these are all rows."""
        if self._beats % FULL_EVERY_BEATS == 0:
            self._due |= dict.fromkeys(self._rows)
        self._beats += 1
        rows: list[TaskStatus] = []
        size = 0
        for task in list(self._due):
            row = self._rows.get(task)
            size += 0 if row is None else len(_ENCODER.encode(row))
            if rows and size > ROWS_BYTES_MAX:
                break
            del self._due[task]
            if row is not None:
                rows.append(row)
        return tuple(rows), bool(rows) and len(rows) == len(self._rows)
