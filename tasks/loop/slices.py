"""Slices of processing: records per task and round of the loop, and the record in progress."""

import logging
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.kafka.ports import Clock, OnRecord
from tidewheel.tasks.key_ranges.batch_size import BatchUnitSize
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.sink_task import SinkTask
from tidewheel.tasks.task.task import Task

_log = logging.getLogger(__name__)

#: Target seconds of a slice; commits and the group's orders wait until it ends.
_SLICE_S = 0.02
_SLICE_RECORDS_MAX = 10_000

#: If a worker's process died without an error (a signal, `os._exit`), the next one reports and
#: processes single records for these seconds: the last report names a record that kills it.
_CAREFUL_S: Final = 60.0


class Slices:
    """Runner of slices: about 20 ms of a task's processing.

    Args:
        is_restoring: Returns True while tasks restore. If the process dies then, the restore may
            be the cause, so `on_record` is not called.
        on_record: Receives each record before its processing, if the previous process died.

    Attributes:
        records: Size of a task's first slice.
    """

    def __init__(
        self, clock: Clock, is_restoring: Callable[[], bool], on_record: OnRecord | None
    ) -> None:
        self.records = 64
        self._clock = clock
        self._is_restoring = is_restoring
        self._on_record = on_record
        self._careful_until_s: float | None = None
        #: Sizes of next slices.
        self._sizes: WeakKeyDictionary[Task, int] = WeakKeyDictionary()
        #: The same for tasks whose functions take batches.
        self._batch_sizes: WeakKeyDictionary[Task, BatchUnitSize] = WeakKeyDictionary()

    def process(self, task: Task) -> int:
        begin_s = self._clock.monotonic_s()
        until_s = begin_s + 2 * _SLICE_S
        late = lambda: self._clock.monotonic_s() > until_s  # noqa: E731 - handed on by every branch
        with task.stores.trusted():
            if self._on_record is not None and self._is_careful(begin_s):
                done = self._process_singly(task, late, self._on_record)
            elif task.calls_batches:
                return self._process_batches(task, begin_s, late)
            else:
                done = task.process(self._size(task), late)
        elapsed_s = max(self._clock.monotonic_s() - begin_s, 1e-6)
        # Grow at most twofold, shrink immediately: the next records may be slower.
        fitting = int(done / elapsed_s * _SLICE_S) + 1
        self._sizes[task] = max(1, min(fitting, self._size(task) * 2, _SLICE_RECORDS_MAX))
        return done

    def _size(self, task: Task) -> int:
        return self._sizes.get(task, self.records)

    def _process_batches(self, task: Task, begin_s: float, late: Callable[[], bool]) -> int:
        batch_size = self._batch_sizes.setdefault(task, BatchUnitSize())
        done = task.process(batch_size.records, late)
        if done:
            batch_size.adapt(done, self._clock.monotonic_s() - begin_s)
        return done

    def _is_careful(self, now_s: float) -> bool:
        if self._is_restoring():
            return False
        if self._careful_until_s is None:
            _log.warning("the worker before died without a word: record by record for a while")
            self._careful_until_s = now_s + _CAREFUL_S
        if now_s < self._careful_until_s:
            return True
        _log.info("no record has ended this worker for %.0f s: in batches again", _CAREFUL_S)
        self._on_record = None
        return False

    def _process_singly(self, task: Task, late: Callable[[], bool], report: OnRecord) -> int:
        assert isinstance(task, ActiveTask | SinkTask), "key ranges have no careful mode"
        done = 0
        # With several inputs, `pop` may decode other records, and a serde may crash in one. Report
        # no record before, or the previous one gets the blame.
        merges = len(task.inputs) > 1
        try:
            while done < self._size(task) and task.ready(self._clock.now_ms()):
                if merges and done:
                    report(None, -1)
                records = task.group.pop(1)
                if records is None:
                    break
                report(TopicPartition(records.topic, records.partition), records.offsets[0])
                done += task.process_records(records)
                if task.commit_requested or late():
                    break
        finally:
            report(None, -1)
        return done
