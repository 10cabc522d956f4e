"""Which status rows go into the next beat: those that changed, all of them now and then, never too many bytes."""

from typing import Final

import msgspec

from tidewheel.rebalance.protocol.task_status import TaskStatus

#: Bytes of rows in one beat at most; the rest goes with the next ones.
ROWS_BYTES_MAX: Final = 1_800

#: Every so many beats all rows are sent, changed or not.
FULL_EVERY_BEATS: Final = 10

_ENCODER: Final = msgspec.json.Encoder()


class StatusRows:
    """The worker's rows, and which of them the group has not heard in their present form.

    >>> rows = StatusRows()
    >>> rows.replace((TaskStatus(task="0_1", role="active", epoch=3, state="RUNNING"),))
    >>> [row.task for row in rows.next_rows()[0]], rows.next_rows()
    (['0_1'], ((), False))
    """

    def __init__(self) -> None:
        """Begin without rows."""
        self._rows: dict[str, TaskStatus] = {}
        self._due: dict[str, None] = {}
        self._beats = 0

    def replace(self, rows: tuple[TaskStatus, ...]) -> None:
        """Take in all rows of the worker."""
        fresh = {row.task: row for row in rows}
        for task, row in fresh.items():
            if self._rows.get(task) != row:
                self._due[task] = None
        self._rows = fresh

    def next_rows(self) -> tuple[tuple[TaskStatus, ...], bool]:
        """Return the rows of the next beat, and whether they are all there are."""
        if self._beats % FULL_EVERY_BEATS == 0:
            self._due |= dict.fromkeys(self._rows)
        self._beats += 1
        taken: list[TaskStatus] = []
        size = 0
        for task in list(self._due):
            row = self._rows.get(task)
            size += 0 if row is None else len(_ENCODER.encode(row))
            if taken and size > ROWS_BYTES_MAX:
                break
            del self._due[task]
            if row is not None:
                taken.append(row)
        return tuple(taken), bool(taken) and len(taken) == len(self._rows)
