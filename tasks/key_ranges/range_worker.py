"""Range worker: processes one key range of one task.

The loop's thread queues decoded records and requests seals. Both sides exchange immutable objects
in deques, and single numbers: no lock is on the path of a record.
"""

import time
from asyncio import CancelledError, Task
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer, Drained
from tidewheel.state_stores.buffers.query_sources import UncommittedRows, not_running
from tidewheel.state_stores.stores.factory import Store
from tidewheel.tasks.erasure import Erasure
from tidewheel.tasks.key_ranges.batch_size import (
    UNIT_S,
    BatchUnitSize,
    OverlappedUnitSize,
    UnitSize,
)
from tidewheel.tasks.key_ranges.key_ranges import key_hash
from tidewheel.tasks.key_ranges.sealed_work import CurrentRecord, Seal, SealBarrier, WorkItem
from tidewheel.tasks.key_ranges.shared_loop import LoopRunner, SharedRunner
from tidewheel.tasks.key_ranges.staged_database import StagedDatabase
from tidewheel.tasks.processing.api.call_window import CallPlaces
from tidewheel.tasks.processing.engine.output import OutputColumns, OutputRuns
from tidewheel.tasks.processing.engine.record_batch import RecordBatch
from tidewheel.tasks.processing.engine.steps import Steps, await_steps, run_steps
from tidewheel.tasks.processing.engine.task_processing import TaskProcessing
from tidewheel.tasks.question import Question

#: Seconds of work after which a range seals it (hands it over for a commit). A call that hangs
#: keeps at most this much from being committed. Half the value slows records of 10 ms by 10 %.
_SEAL_S: Final = 0.1
#: Sealing costs as much as a record, so a loop that is behind its work seals less often.
_BEHIND_FACTOR: Final = 5
#: Seconds that a record may occupy the shared event loop; more time counts as blocking it.
_OCCUPY_MAX_S: Final = 0.002
#: Approximate bytes of a staged output besides key and value.
_STAGED_OVERHEAD_BYTES: Final = 150


class Scheduling(Enum):
    """State of a range in its pool, which alone changes it, under its lock."""

    IDLE = "idle"
    QUEUED = "queued"
    RUNNING = "running"


class RangeCollector:
    def __init__(self, partition_count: Callable[[str], int]) -> None:
        self._partition_count = partition_count
        self._staged = OutputRuns()
        self.staged_bytes = 0

    def add(self, columns: OutputColumns, *, internal: bool) -> None:
        if len(columns):
            columns.internal = internal
            self._staged.add(columns)
            payload = sum(map(len, filter(None, columns.keys)))
            payload += sum(map(len, filter(None, columns.values)))
            self.staged_bytes += payload + len(columns) * _STAGED_OVERHEAD_BYTES

    def partition_count(self, topic: str) -> int:
        return self._partition_count(topic)

    def pop(self) -> list[OutputColumns]:
        self.staged_bytes = 0
        return self._staged.pop()


class RangeParts(Protocol):
    """Factory of a range's graph, stores and databases, called in the range's thread."""

    def __call__(
        self, collector: RangeCollector, /
    ) -> tuple[TaskProcessing, Mapping[str, Store], Sequence[StagedDatabase]]: ...


class RangeSetting(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    index: int
    first_hash: int
    end_hash: int
    cache_bytes: int
    #: Places for calls of coroutine functions, if there are more than ranges.
    call_places: CallPlaces | None = None
    stream_time_ms: int
    operator_times_ms: tuple[int, ...]


class RangeWorker:
    """Worker of one key range.

    One thread at a time calls `turn`; the loop's thread calls the rest, unless noted.

    Attributes:
        loop_blocked_s: Seconds that its records occupied the event loop beyond 2 ms each.
        loop_used_s: The same in processor time of the loop's thread.
        seals: Work sealed (handed over for a commit) that the loop has not received yet.
        passes_done: Number of finished rows that only represent the time of other ranges' records.
        dirty: True if finished work is not sealed.
        commit_requested: True if a processor requested a commit; work before that is sealed.
        busy_percent: Percent of `RangePlacement`'s last interval in which the range worked.
        cancelled: True if a stop cancelled its record in progress; the next start repeats unsealed
            work.
        unit_since_s: Start of the current unit of work (`time.monotonic`); None between units.
    """

    loop_blocked_s = 0.0
    loop_used_s = 0.0
    busy_percent = 0
    items_done = 0

    def __init__(
        self,
        setting: RangeSetting,
        make_parts: RangeParts,
        *,
        collector: RangeCollector,
        trusted: Callable[[], AbstractContextManager[None]],
        share: Callable[[], SharedRunner],
    ) -> None:
        self.setting = setting
        self.scheduling = Scheduling.IDLE
        self.queue: deque[WorkItem] = deque()
        self.seals: deque[Seal] = deque()
        self.error: BaseException | None = None
        self.rows_done = 0
        self.passes_done = 0
        self.bytes_done = 0
        self.dirty = False
        self.commit_requested = False
        self.next_wall_clock_ms: int | None = None
        self.busy_s = 0.0
        self.unsealed_bytes = 0
        self.sealed_bytes = 0
        self.unit_since_s: float | None = None
        self.cancelled = False
        self.processing: TaskProcessing | None = None
        self.ended = False
        self.closing_error: Exception | None = None
        self._make_parts = make_parts
        self._collector = collector
        self._trusted = trusted
        self.waiting = LoopRunner(share)
        #: Its runner if it takes its turns on the event loop, else None.
        self._shared: SharedRunner | None = None
        self._stores: Mapping[str, Store] = {}
        self._databases: Sequence[StagedDatabase] = ()
        self._item: WorkItem | None = None
        #: Number of processed rows of `_item`: the index of the row in progress.
        self._rows_processed = 0
        #: Stream time per row of the current run (records distributed together).
        self._run_times: Sequence[int] = ()
        #: First row of the run whose time was not checked for due callbacks.
        self._timed = 0
        self._unit_size = UnitSize()
        self._sealed = 0
        self._sealed_busy_s = -_SEAL_S
        # Requests: the worker's own thread sets these attributes for the range's thread.
        self._seal_barrier: SealBarrier | None = None
        self._punctuate_ms: int | None = None
        self._halted = False
        self._closing = False
        self._closed_barrier = SealBarrier(())
        self._requests: deque[Question | Erasure] = deque()

    @property
    def has_work(self) -> bool:
        """Return True if a thread must run the range. Also called by the pool."""
        if self._closing:
            return not self.ended
        if self.error is not None:
            return False
        if self._seal_barrier is not None or self.processing is None or self._requests:
            return True
        waits = self._item is not None or bool(self.queue)
        return not self._halted and (waits or self._punctuate_ms is not None)

    @property
    def slow(self) -> bool:
        """Return True if units of work may take long: slow records, or calls for whole batches."""
        return self._unit_size.slow

    @property
    def mean_s(self) -> float:
        return self._unit_size.mean_s

    @property
    def awaits(self) -> bool:
        """Return True if the next work belongs on the shared event loop: nothing in it blocks."""
        if self._shared is None or self._closing or self._punctuate_ms is not None:
            return False
        return self.processing is not None and not len(self.processing.stream_schedules)

    @property
    def expired_puts(self) -> int:
        return sum(store.expired_puts for store in self._stores.values())

    @property
    def is_quiet(self) -> bool:
        waits = self._item is not None or bool(self.queue) or bool(self._requests)
        return self.scheduling is Scheduling.IDLE and not waits

    @property
    def needs_all_times(self) -> bool:
        """Return True if the range needs the time of other ranges' records, for callbacks."""
        return self.processing is None or len(self.processing.stream_schedules) > 0

    def request_seal(self, barrier: SealBarrier) -> None:
        self._seal_barrier = barrier

    def add_question(self, question: Question) -> None:
        self._requests.append(question)
        if self._closing or self.error is not None:
            self._fail_questions()

    def erase(self, erasure: Erasure) -> None:
        self._requests.append(erasure)

    def _fail_questions(self) -> None:
        while self._requests:
            request = self._requests.popleft()
            if isinstance(request, Question):
                request.fail(not_running(request.store))

    def punctuate(self, now_ms: int) -> None:
        self.next_wall_clock_ms = None
        self._punctuate_ms = now_ms

    def halt(self) -> None:
        self._halted = True

    def cancel(self) -> None:
        self.waiting.cancel()

    def resume(self) -> None:
        self._halted = False

    def close(self, over: SealBarrier) -> None:
        """Close the processors as the last work and signal `over`; later results are ignored."""
        self._closed_barrier = over
        self._closing = True
        for database in self._databases:
            database.close()
        self._fail_questions()

    def applied(self, number: int) -> None:
        """Record that the database contains all seals up to `number`."""
        for database in self._databases:
            database.applied = number

    def owns(self, task: Task[Any]) -> bool:
        """Return True for an asyncio task of its coroutines. Any thread may ask."""
        shared, processing = self.waiting.shared, self.processing
        return (shared is not None and shared.has(task)) or (
            processing is not None and processing.graph.has_call(task)
        )

    def current_record(self) -> CurrentRecord | None:
        item = self._item
        if item is None or item.batch is None or item.batch.source is None:
            return None
        index = min(self._rows_processed, len(item.batch) - 1)
        awaited = None if self.processing is None else self.processing.graph.awaited_row()
        row = item.batch.rows[index] if awaited is None else awaited
        source = item.batch.source
        offset = source.offsets[row]
        return CurrentRecord(
            key_hash(source.raw_keys[row], offset), offset, source.topic, source.partition
        )

    def turn(self, *, others_wait: Callable[[], bool], alone: Callable[[], bool]) -> None:
        """Work until nothing is left or other ranges need the thread. Never raises.

        If `alone()` (no other thread is free), an idle range seals now: a later request would wait.
        """
        with self._ending(), self._trusted(), self.waiting:
            run_steps(self._turn(others_wait, alone, on_loop=False))
        if self._closing:
            self._end()

    async def turn_on_loop(self) -> None:
        with self._ending(), self._trusted():
            assert self._shared is not None, "it shares the loop that calls it"
            await await_steps(self._turn(_never, _never, on_loop=True), self._shared)

    @contextmanager
    def _ending(self) -> Generator[None]:
        try:
            yield
        except CancelledError as error:
            self.error = None if self._closing else error
            self.cancelled = self._halted
        except BaseException as error:  # noqa: BLE001 - raised in the loop's thread, as the loop's own
            self.error = None if self._closing else error
        finally:
            self.unit_since_s = None
            if self._seal_barrier is not None and not self._closing:
                barrier, self._seal_barrier = self._seal_barrier, None
                barrier.sealed(self)

    def _turn(
        self, others_wait: Callable[[], bool], alone: Callable[[], bool], *, on_loop: bool
    ) -> Steps[None]:
        yield from self._work(others_wait, on_loop=on_loop)
        waits = self.has_work
        if self._can_seal and (
            self._should_seal(_SEAL_S if waits else 0.0) or (not waits and alone())
        ):
            self._seal()

    @property
    def _can_seal(self) -> bool:
        return self.dirty and not self._closing and self.error is None

    def _should_seal(self, after_s: float) -> bool:
        """Return True if work must be sealed (handed over for a commit) before the next call.

        That call may hang, so slow ranges and users' objects seal every `after_s` seconds of work.
        Batches of fast records wait for a request: sealing costs more there.
        """
        if self._seal_barrier is not None or self.processing is None:
            return True
        if self._shared is not None and self._shared.is_behind:
            after_s *= _BEHIND_FACTOR
        careful = self.slow or not self.processing.graph.batched
        return careful and self.busy_s - self._sealed_busy_s >= after_s

    def _work(self, others_wait: Callable[[], bool], *, on_loop: bool) -> Steps[None]:
        while self.has_work and not self._closing and self.awaits is on_loop:
            if self.processing is None:
                self._start()
                if self._shared is not None:
                    break  # the shared loop runs the rest
            elif self._seal_barrier is not None:
                if self.dirty:
                    self._seal()
                barrier, self._seal_barrier = self._seal_barrier, None
                barrier.sealed(self)
            elif self._requests:
                self._answer(self.processing, self._requests.popleft())
            else:
                waited = 0 if self._shared is None else self._shared.waits
                yield from self._next(self.processing)
                if on_loop and self._shared is not None and self._shared.waits == waited:
                    yield None  # gives other ranges a turn
            if others_wait():
                break
        if self._halted and self._can_seal:
            self._seal()

    def _answer(self, processing: TaskProcessing, request: Question | Erasure) -> None:
        if isinstance(request, Erasure):
            self._erase(processing, request)
            return
        (database,) = (staged for staged in self._databases if request.store in staged.families)
        buffer = self._stores[request.store].buffer
        assert isinstance(buffer, CommitBuffer), (
            "custom stores are refused where there are key ranges"
        )
        request.answer(UncommittedRows(buffer, database))

    def _erase(self, processing: TaskProcessing, erasure: Erasure) -> None:
        inner = Erasure(erasure.store, erasure.key, erasure.tail)
        processing.erase(inner)
        self.dirty = True
        self._seal()
        erasure.end(rows=inner.rows, problem=inner.problem)

    def _next(self, processing: TaskProcessing) -> Steps[None]:
        if self.dirty and self._should_seal(_SEAL_S):
            self._seal()
        yield from self._unit(processing)
        if processing.commit_requested and not self._closing:
            processing.commit_requested = False
            self._seal()
            self.commit_requested = True

    def _start(self) -> None:
        processing, self._stores, self._databases = self._make_parts(self._collector)
        # `close` ran before these databases existed: no processor may use them.
        if self._closing:
            return
        processing.begin(self.setting.stream_time_ms, self.setting.operator_times_ms)
        self.next_wall_clock_ms = processing.wall_clock_schedules.next_due_ms()
        self.processing = processing
        if processing.graph.calls_batches:
            self._unit_size = BatchUnitSize()
        elif (places := self.setting.call_places) is not None and processing.graph.overlaps_calls:
            processing.graph.overlap_calls(places)
            self._unit_size = OverlappedUnitSize(places.share)
        self._shared = self.waiting.join() if processing.graph.awaits else None

    def _unit(self, processing: TaskProcessing) -> Steps[None]:
        self.dirty = True
        self.unit_since_s = begin_s = time.monotonic()
        now_ms, self._punctuate_ms = self._punctuate_ms, None
        if now_ms is not None:
            processing.punctuate_wall_clock(now_ms)
        else:
            done = yield from self._records(processing, begin_s + UNIT_S)
            elapsed_s = time.monotonic() - begin_s
            self.busy_s += elapsed_s
            self._unit_size.adapt(done, elapsed_s)
            if self._shared is not None:
                self._count_blocking(self._shared, done)
        self.unit_since_s = None
        if len(processing.wall_clock_schedules):
            self.next_wall_clock_ms = processing.wall_clock_schedules.next_due_ms()
        cached_bytes = processing.graph.cached_bytes()
        if cached_bytes > self.setting.cache_bytes:
            processing.graph.shrink(cached_bytes - self.setting.cache_bytes)
        if not self.slow:  # slow ranges seal soon, which counts the bytes
            self.unsealed_bytes = self._collector.staged_bytes + sum(
                store.buffer.uncommitted_bytes for store in self._stores.values()
            )

    def _count_blocking(self, shared: SharedRunner, done: int) -> None:
        worked_s, shared.worked_s = shared.worked_s, 0.0
        shared.turns.worked_s += worked_s
        used_s = worked_s * shared.turns.watch.cpu_share
        allowed_s = done * _OCCUPY_MAX_S
        self.loop_blocked_s = max(0.0, self.loop_blocked_s + worked_s - allowed_s)
        self.loop_used_s = max(0.0, self.loop_used_s + used_s - allowed_s)

    def _records(self, processing: TaskProcessing, until_s: float) -> Steps[int]:
        item = self._item
        if item is None:
            item = self._item = self.queue.popleft()
            self._rows_processed = 0
            if item.times_ms is not self._run_times:
                self._run_times, self._timed = item.times_ms, 0
        if item.batch is None:
            for letter in item.letters:
                self._collector.add(letter, internal=letter.internal)
            done = len(item.rows)
            self._rows_processed = done
        elif processing.graph.batched:
            done = yield from self._batch(processing, item, item.batch)
        else:
            done = yield from self._singly(processing, item, item.batch, until_s)
        if item.only_time:
            self.passes_done += done
        self.rows_done += done
        if self._rows_processed >= len(item.rows):
            if len(processing.stream_schedules):
                self._pass_time(processing, item, self._timed, item.end)
            self._timed = item.end
            self.bytes_done += item.size_bytes
            self._item = None
            self.items_done += 1
        return 0 if item.only_time else done

    def _batch(self, processing: TaskProcessing, item: WorkItem, batch: RecordBatch) -> Steps[int]:
        begin = self._rows_processed
        stop = min(begin + self._unit_size.records, len(batch))
        part = batch if stop - begin == len(batch) else batch.take(range(begin, stop))
        processing.stream_time_ms = item.times_ms[item.rows[stop - 1]]
        if processing.graph.has_coroutines:
            yield from processing.graph.steps(item.source, part)
        else:
            processing.graph.run(item.source, part)
        self._rows_processed = stop
        processing.counters.processed += stop - begin
        return stop - begin

    def _singly(
        self, processing: TaskProcessing, item: WorkItem, batch: RecordBatch, until_s: float
    ) -> Steps[int]:
        done = 0
        while self._rows_processed < len(batch):
            index = self._rows_processed
            row = item.rows[index]
            if len(processing.stream_schedules):
                self._pass_time(processing, item, self._timed, row)
            processing.stream_time_ms = item.times_ms[row]
            record = batch if len(batch) == 1 else batch.single(index)
            if processing.graph.awaits:
                yield from processing.graph.steps(item.source, record)
            else:
                processing.graph.run(item.source, record)
            processing.punctuate_stream_time()
            self._timed = row + 1
            self._rows_processed += 1
            done += 1
            processing.counters.processed += 1
            if (
                processing.commit_requested
                or self._halted
                or self._closing
                or done >= self._unit_size.records
                or time.monotonic() > until_s
            ):
                break
        return done

    @staticmethod
    def _pass_time(processing: TaskProcessing, item: WorkItem, start: int, stop: int) -> None:
        schedules = processing.stream_schedules
        passed = min(max(item.passed, start), stop)
        for now_ms in schedules.due_times(item.times_ms, start, passed):
            schedules.pop_due(now_ms)
        for now_ms in schedules.due_times(item.times_ms, passed, stop):
            processing.stream_time_ms = now_ms
            processing.punctuate_stream_time()

    def _seal(self) -> None:
        processing = self.processing
        assert processing is not None, "only started ranges are dirty"
        processing.graph.flush()
        number = self._sealed + 1
        drained = {
            name: store.buffer.drain()
            for name, store in self._stores.items()
            if store.buffer.has_changes()
        }
        size = self._collector.staged_bytes + sum(
            self._stores[name].buffer.uncommitted_bytes for name in drained
        )
        self._stage(number, drained)
        for name, store in self._stores.items():
            if name in drained or not store.buffer.dirty:
                store.buffer.applied()
        self._sealed = number
        self._sealed_busy_s = self.busy_s
        self.sealed_bytes += size
        self.unsealed_bytes = 0
        self.seals.append(
            Seal(
                number=number,
                rows_done=self.rows_done,
                outputs=self._collector.pop(),
                drained=drained,
                operator_times_ms=processing.operator_times_ms(),
                size_bytes=size,
            )
        )
        self.dirty = False

    def _stage(self, number: int, drained: Mapping[str, Drained]) -> None:
        for database in self._databases:
            drained_here = {
                name: changes for name, changes in drained.items() if name in database.families
            }
            metadata = {
                key: value
                for changes in drained_here.values()
                for key, value in changes.metadata.items()
            }
            if drained_here:
                database.stage(
                    number,
                    {name: changes.stored for name, changes in drained_here.items()},
                    metadata,
                )

    def _end(self) -> None:
        if self.ended:
            return
        try:
            if self.processing is not None:
                with self.waiting:
                    self.processing.graph.close()
            self.waiting.close()
        except Exception as error:  # noqa: BLE001 - raised when the task closes
            self.closing_error = error
        finally:
            self.ended = True
            self._closed_barrier.sealed(self)


def _never() -> bool:
    return False
