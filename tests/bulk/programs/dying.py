"""Kills of a process at a call, and of drivers and executors while these write results."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.bulk.batch_topologies import kill_in_call
from tidewheel.streams.bulk import bounded_transactions
from tidewheel.streams.bulk.backfill import computation
from tidewheel.streams.bulk.backfill.output_writer import OutputReport, write_outputs
from tidewheel.streams.bulk.batch import result
from tidewheel.streams.bulk.batch.executors import OutputRows
from tidewheel.streams.bulk.batch.stage_files import StageFile

#: Few, so that a kill leaves some records committed and others not.
_TRANSACTION_RECORDS: Final = 100
_ROWS_BEFORE_KILL: Final = 100


def die_in_call(owner: type, name: str, number: int, *, before: bool) -> None:
    """Let this process kill itself before or after its call `number` of a method."""
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


def die_while_writing() -> None:
    """Let executors kill this driver after the first transaction of results."""
    kill = partial(os.kill, os.getpid(), signal.SIGKILL)
    _replace_writer(partial(_write, kill))


def kill_executor_while_writing(marker: Path) -> None:
    """Let one executor of this driver kill itself after its first transaction of results."""
    kill = partial(kill_in_call, 1, str(marker))
    _replace_writer(partial(_write, kill))


def die_while_writing_files(partition: int) -> None:
    """Let executors kill this driver within that partition of an output topic's files."""
    dying = partial(_DyingRows, partition=partition, driver=os.getpid())
    setattr(result, OutputRows.__name__, dying)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DyingRows(OutputRows):
    """Rows of an output topic; `driver` is killed after some of the partition's rows."""

    partition: int
    driver: int

    def rows(self, item: tuple[int, tuple[StageFile, ...]]) -> Iterator[tuple[Any, ...]]:
        for number, row in enumerate(OutputRows.rows(self, item)):
            if item[0] == self.partition and number == _ROWS_BEFORE_KILL:
                os.kill(self.driver, signal.SIGKILL)
            yield row


def _replace_writer(write: Callable[..., OutputReport]) -> None:
    setattr(computation, write_outputs.__name__, write)


def _write(
    kill: Callable[[], object],
    work: Any,
    settings: Any,
    order: Any,
    item: Any,
    count: Callable[[int], None],
) -> OutputReport:
    def counted(records: int) -> None:
        if records:
            kill()
        count(records)

    bounded_transactions.TRANSACTION_RECORDS = _TRANSACTION_RECORDS  # type: ignore[misc] # an executor's own
    return write_outputs(work, settings, order, item, counted)
