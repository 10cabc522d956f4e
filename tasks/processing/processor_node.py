"""Runs a user's `Processor` as a node: record by record, forwards go downstream at once."""

from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from state_stores.errors import StateStoreError
from tasks.processing.operator import NodeContext, Operator, Output
from tasks.processing.processor import Cancellable, Processor, ProcessorContext, PunctuationType
from tasks.processing.punctuation import Schedule, first_due_ms
from tasks.processing.record import TIMESTAMP_MAX_MS, Headers, Record, RecordMetadata
from tasks.processing.record_batch import RecordBatch, SourceRecords


class ProcessorHost(Protocol):
    """What the task offers to its processors beyond `NodeContext`."""

    @property
    def application_id(self) -> str: ...  # noqa: D102 - see ProcessorContext
    @property
    def state_dir(self) -> Path: ...  # noqa: D102 - see ProcessorContext
    @property
    def stream_time_ms(self) -> int: ...  # noqa: D102 - see ProcessorContext

    def metrics(self) -> dict[str, float]:
        """Return the task's figures."""
        ...

    def now_ms(self) -> int:
        """Return the wall clock."""
        ...

    def request_commit(self) -> None:
        """Ask for a commit after the current record."""
        ...

    def add_schedule(self, schedule: Schedule, clock: PunctuationType) -> None:
        """Keep a schedule."""
        ...

    def at_record(self, timestamp: int) -> None:
        """Tell the stores the timestamp of the record being processed."""
        ...


#: Where a processor stands: the input record (its source and row; None in a punctuation), and the time of that.
_Place = tuple[SourceRecords | None, int, int]
_NOWHERE: _Place = (None, 0, -1)

#: Pushes a batch of one record into the children of a node, or into the named one.
Push = Callable[[RecordBatch, str | None], None]


class ProcessorNode(Operator):
    """One user processor in one task."""

    def __init__(
        self, processor: Processor[Any, Any, Any, Any], host: ProcessorHost, stores: Collection[str]
    ) -> None:
        self._processor = processor
        self._host = host
        self._stores = frozenset(stores)
        self._push: Push | None = None

    def connect(self, push: Push) -> None:
        """Say where forwards go; called before `init`."""
        self._push = push

    def init(self, context: NodeContext) -> None:
        """Initialise the user's processor."""
        self.context = context
        assert self._push is not None, "connect comes first"
        self.user_context = _Context(context, self._host, self._stores, self._push)
        self._processor.init(self.user_context)

    def process(self, batch: RecordBatch) -> Output:
        """Give each record to the processor; what it forwards has gone downstream when this returns."""
        for index in range(len(batch)):
            record = Record(
                batch.keys[index],
                batch.values[index],
                batch.timestamps[index],
                batch.headers_of(index),
            )
            context = self.user_context
            before = context.current
            row = batch.rows[index] if batch.source is not None else 0
            context.stand_at((batch.source, row, record.timestamp))
            try:
                self._processor.process(record)
                context.raise_failed_below(None)
            except Exception as error:
                context.raise_failed_below(error)
                if isinstance(error, _PASSING):
                    raise
                self.context.failed(batch, index, error)
            finally:
                context.current = before
        return None

    def punctuate(self, schedule: Schedule, now_ms: int) -> None:
        """Call a scheduled callback; records it forwards have no input record."""
        context = self.user_context
        context.stand_at((None, 0, now_ms))
        try:
            schedule.callback(now_ms)
            context.raise_failed_below(None)
        except Exception as error:
            context.raise_failed_below(error)
            if isinstance(error, _PASSING):
                raise
            nothing = RecordBatch([None], [None], [now_ms], None, (0,), None)
            self.context.failed(nothing, 0, error)
        finally:
            context.current = _NOWHERE

    def close(self) -> None:
        """Close the user's processor."""
        self._processor.close()


class _Context(ProcessorContext[Any, Any]):
    def __init__(
        self, node: NodeContext, host: ProcessorHost, stores: frozenset[str], push: Push
    ) -> None:
        self._node = node
        self._host = host
        self._stores = stores
        self._push = push
        #: Where the processor stands.
        self.current = _NOWHERE
        #: Set when something below failed for good in a `forward`.
        self._failed_below: DownstreamError | None = None

    def stand_at(self, place: "_Place") -> None:
        """Begin a record or a punctuation."""
        self.current = place
        self._failed_below = None
        self._host.at_record(place[2])

    def raise_failed_below(self, error: Exception | None) -> None:
        """Raise what failed for good below, also if the user's code caught it or made another error of it."""
        if self._failed_below is not None and error is not self._failed_below:
            raise self._failed_below from error

    @property
    def application_id(self) -> str:
        return self._host.application_id

    @property
    def task_id(self) -> str:
        return self._node.task_id

    @property
    def state_dir(self) -> Path:
        return self._host.state_dir

    @property
    def metrics(self) -> dict[str, float]:
        return self._host.metrics()

    @property
    def record_metadata(self) -> RecordMetadata | None:
        source, row, _ = self.current
        return None if source is None else source.metadata(row)

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        if type(record.timestamp) is not int or not 0 <= record.timestamp <= TIMESTAMP_MAX_MS:
            raise ValueError(
                f"{self._node.node_name} forwarded a record with timestamp {record.timestamp!r}; it must be an int of "
                "milliseconds since the epoch, 0 or more"
            )
        source, row, timestamp = self.current
        headers: list[Headers] | None = [record.headers] if record.headers else None
        batch = RecordBatch(
            [record.key], [record.value], [record.timestamp], headers, (row,), source
        )
        try:
            self._push(batch, child)
        except DownstreamError as error:
            self._failed_below = error
            raise
        finally:
            # What is below stood at records of its own; from here on it is this processor's again.
            self._host.at_record(timestamp)

    def get_state_store(self, name: str) -> Any:
        if name not in self._stores:
            connected = ", ".join(sorted(self._stores)) or "none"
            raise KeyError(
                f"store {name} is not connected to processor {self._node.node_name} (connected: {connected}); "
                "name it in stores=[...] or connect_processor_and_state_stores"
            )
        return self._node.store(name)

    def schedule(
        self,
        interval: timedelta | int,
        clock: PunctuationType,
        callback: Callable[[int], None],
        start: int | None = None,
    ) -> Cancellable:
        interval_ms = (
            interval if isinstance(interval, int) else interval // timedelta(milliseconds=1)
        )
        if interval_ms < 1:
            raise ValueError(
                f"{self._node.node_name}: a schedule's interval is at least 1 ms, not {interval_ms}"
            )
        clock = PunctuationType(clock)  # also what untyped code may spell, and nothing else
        stream = clock is PunctuationType.STREAM_TIME
        now_ms = self._host.stream_time_ms if stream else self._host.now_ms()
        due_ms = first_due_ms(interval_ms, now_ms, start, aligned_at_zero=stream)
        schedule = Schedule(interval_ms, callback, due_ms, self._node.node_name)
        self._host.add_schedule(schedule, clock)
        return schedule

    def commit(self) -> None:
        self._host.request_commit()

    def current_stream_time_ms(self) -> int:
        return self._host.stream_time_ms

    def current_system_time_ms(self) -> int:
        return self._host.now_ms()


class DownstreamError(Exception):
    """Carries an error of a node further down through the `process` of the nodes above it, which did not fail.

    `cause` is the error that stops the worker.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


#: Errors that are not of the record being processed, so that no handler is asked about it.
_PASSING = (DownstreamError, StateStoreError)
