"""Nodes with a user's `Processor`: record by record, forwards run downstream immediately."""

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from inspect import iscoroutine, iscoroutinefunction, isgeneratorfunction
from pathlib import Path
from typing import Any, Protocol

from tidewheel.state_stores.errors import StateStoreError, StreamsError
from tidewheel.state_stores.layout.headers import as_headers
from tidewheel.tasks.durations import Duration, parse_ms
from tidewheel.tasks.processing.api.app_configs import AppConfigs
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.api.processor import (
    Cancellable,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    ProcessingContext,
    ProcessorContext,
    PunctuationType,
)
from tidewheel.tasks.processing.api.read_only_store import ReadOnlyStore
from tidewheel.tasks.processing.api.record import (
    TIMESTAMP_MAX_MS,
    FixedKeyRecord,
    Headers,
    Record,
    RecordMetadata,
)
from tidewheel.tasks.processing.api.supplied import AnyProcessor, accepts_arguments, process_of
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, Output
from tidewheel.tasks.processing.engine.punctuation import Schedule, first_due_ms
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords
from tidewheel.tasks.processing.engine.steps import Steps, run_steps


class ProcessorHost(Protocol):
    @property
    def application_id(self) -> str: ...
    @property
    def state_dir(self) -> Path: ...
    @property
    def app_configs(self) -> AppConfigs: ...
    @property
    def stream_time_ms(self) -> int: ...
    @property
    def global_stores(self) -> Mapping[str, Any]: ...

    def metrics(self) -> dict[str, float]: ...

    def now_ms(self) -> int: ...

    def request_commit(self) -> None: ...

    def add_schedule(self, schedule: Schedule, clock: PunctuationType) -> None: ...

    def at_record(self, timestamp: int) -> None:
        """Set the timestamp that stores use for the current record."""
        ...


#: Source, row and timestamp of the current record; source None in a punctuation.
_Place = tuple[SourceRecords | None, int, int]
_NOWHERE: _Place = (None, 0, -1)

Push = Callable[[RecordBatch, str | None], None]
#: Like `Push`, but yields each coroutine of the nodes downstream.
PushSteps = Callable[[RecordBatch, str | None], Steps[None]]


class ProcessorNode(Operator):
    def __init__(
        self,
        processor: AnyProcessor,
        host: ProcessorHost,
        stores: Collection[str],
        reads: Collection[str] = (),
    ) -> None:
        self._processor = processor
        self._fixed_key = isinstance(processor, FixedKeyProcessor)
        self._process, self._async = process_of(processor)
        self._host = host
        #: Connected stores; True if the processor may write them.
        self._stores = {name: name not in reads for name in stores}
        self._push: Push | None = None

    def connect(self, push: Push) -> None:
        """Set the function that receives forwards; called before `init`."""
        self._push = push

    def open(self, push: Push, push_steps: PushSteps) -> None:
        """Replace the function of `connect`: all nodes are initialised, and accept forwards."""
        self.user_context.push = push
        self.user_context.push_steps = push_steps

    def awaits(self) -> bool:
        return self._async

    def blocks(self) -> bool:
        return not self._async

    def init(self, context: NodeContext) -> None:
        self.context = context
        assert self._push is not None, "connect comes first"
        context_class = _FixedKeyContext if self._fixed_key else _RecordContext
        self.user_context = context_class(context, self._host, self._stores, self._push)
        users: Any = self.user_context
        self._processor.init(users)

    def process(self, batch: RecordBatch) -> Output:
        context = self.user_context
        for index in range(len(batch)):
            before = context.current
            record = self._enter_record(batch, index)
            try:
                result = self._process(record)
                if result is not None:
                    run_steps(self._awaited(result))
                context.raise_failed_below(None)
            except FAILURES as error:
                self._failed(batch, index, error)
            finally:
                context.current = before
        return None

    def steps(self, batch: RecordBatch) -> Steps[Output]:
        context = self.user_context
        for index in range(len(batch)):
            before = context.current
            record = self._enter_record(batch, index)
            try:
                yield from self._awaited(self._process(record))
                context.raise_failed_below(None)
            except FAILURES as error:
                self._failed(batch, index, error)
            finally:
                context.current = before
        return None

    @property
    def is_at_work(self) -> bool:
        """Return True during a user's call; any thread may call it."""
        return self.user_context.current is not _NOWHERE

    def _enter_record(self, batch: RecordBatch, index: int) -> Any:
        record: Record[Any, Any] = Record(
            batch.keys[index],
            batch.values[index],
            batch.timestamps[index],
            batch.headers_of(index),
        )
        row = batch.rows[index] if batch.source is not None else 0
        self.user_context.enter_record((batch.source, row, record.timestamp))
        return FixedKeyRecord.of(record) if self._fixed_key else record

    def _failed(self, batch: RecordBatch, index: int, error: Exception) -> None:
        self.user_context.raise_failed_below(error)
        if isinstance(error, _PASSING):
            raise error
        self.context.failed(batch, index, error)

    def _awaited(self, result: object) -> Steps[None]:
        """Yield the coroutine that `process` returned, if any; raise for a result except None."""
        context = self.user_context
        while iscoroutine(result):
            context.collect_forwards()
            try:
                result = yield result
            finally:
                # Forwards before an error are pushed, too, as for a plain processor.
                yield from context.push_collected()
        if result is None:
            return
        raise TypeError(
            f"process of {type(self._processor).__name__} returned an object of type {type(result).__name__}, which goes "
            "nowhere; use context.forward(record) and return nothing"
        )

    def punctuate(self, schedule: Schedule, now_ms: int) -> None:
        context = self.user_context
        context.enter_record((None, 0, now_ms))
        try:
            schedule.callback(now_ms)
            context.raise_failed_below(None)
        except FAILURES as error:
            context.raise_failed_below(error)
            if isinstance(error, _PASSING):
                raise
            nothing = RecordBatch([None], [None], [now_ms], None, (0,), None)
            self.context.failed(nothing, 0, error)
        finally:
            context.current = _NOWHERE

    def close(self) -> None:
        self._processor.close()


class _NodeProcessingContext(ProcessingContext):
    def __init__(
        self, node: NodeContext, host: ProcessorHost, stores: Mapping[str, bool], push: Push
    ) -> None:
        self._node = node
        self._host = host
        self._stores = stores
        self.push = push
        self.push_steps: PushSteps | None = None
        self.current = _NOWHERE
        #: A fatal error of a node downstream, raised by `forward`.
        self._failed_below: DownstreamError | None = None
        #: Forwards of the running coroutine; None outside of one.
        self._collected: list[tuple[RecordBatch, str | None]] | None = None

    def enter_record(self, place: "_Place") -> None:
        self.current = place
        self._failed_below = None
        self._host.at_record(place[2])

    def raise_failed_below(self, error: Exception | None) -> None:
        """Raise a fatal downstream error, even if user code caught or replaced it."""
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

    def app_configs(self) -> AppConfigs:
        return self._host.app_configs

    def app_configs_with_prefix(self, prefix: str) -> AppConfigs:
        return self._host.app_configs.with_prefix(prefix)

    @property
    def metrics(self) -> dict[str, float]:
        return self._host.metrics()

    @property
    def record_metadata(self) -> RecordMetadata | None:
        source, row, _ = self.current
        return None if source is None else source.metadata(row)

    def pass_on(self, record: Record[Any, Any], child: str | None) -> None:
        if type(record) is not Record:
            _check_record(record, self._node.node_name)
        if type(record.timestamp) is not int or not 0 <= record.timestamp <= TIMESTAMP_MAX_MS:
            raise ValueError(
                f"{self._node.node_name} forwarded a record with timestamp {record.timestamp!r}; it must be an int of "
                "milliseconds since the epoch, 0 or more"
            )
        source, row, _ = self.current
        headers: list[Headers] | None = None
        if record.headers:
            # Headers of the input record need no check.
            inputs = None if source is None else source.headers
            if inputs is not None and inputs[row] is record.headers:
                headers = [record.headers]
            else:
                headers = [_checked_headers(record.headers, self._node.node_name)]
        batch = RecordBatch(
            [record.key], [record.value], [record.timestamp], headers, (row,), source
        )
        if self._collected is None:
            self._pushed(batch, child)
        else:
            self._collected.append((batch, child))

    def _pushed(self, batch: RecordBatch, child: str | None) -> None:
        try:
            self.push(batch, child)
        except DownstreamError as error:
            self._failed_below = error
            raise
        finally:
            # Nodes downstream set the timestamps of their records; return to this record's.
            self._host.at_record(self.current[2])

    def collect_forwards(self) -> None:
        self._collected = []

    def push_collected(self) -> Steps[None]:
        collected, self._collected = self._collected or [], None
        assert self.push_steps is not None, "records are processed once all nodes are open"
        for batch, child in collected:
            try:
                yield from self.push_steps(batch, child)
            except DownstreamError as error:
                self._failed_below = error
                raise
            finally:
                self._host.at_record(self.current[2])

    def get_state_store(self, name: str) -> Any:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users may be untyped
            raise StreamsError(
                f"processor {self._node.node_name}: a store's name is a str, not {type(name).__name__}"
            )
        if name in self._stores:
            store = self._node.store(name)
            writes = self._stores[name]
            return store if writes else ReadOnlyStore(store, name, self._node.node_name)
        if name in self._host.global_stores:
            return self._host.global_stores[name]
        connected = ", ".join(sorted(self._stores)) or "none"
        raise StreamsError(
            f"processor {self._node.node_name} has no access to store {name!r} (connected: {connected}): name it in "
            "stores=[...] of process() or process_values(), give it in the supplier's `stores`, or connect it with "
            "connect_processor_and_state_stores()"
        )

    def schedule(
        self,
        interval: Duration,
        clock: PunctuationType,
        callback: Callable[[int], None],
        start: int | None = None,
    ) -> Cancellable:
        interval_ms = _interval_ms(interval, self._node.node_name)
        _check_callback(callback, self._node.node_name)
        if start is not None and type(start) is not int:
            raise TypeError(
                f"{self._node.node_name}: a schedule's start must be an int of milliseconds since the epoch, not "
                f"{type(start).__name__}"
            )
        if start is not None and start < 0:
            raise ValueError(
                f"{self._node.node_name}: a schedule's start is a time from 0 (ms since the epoch), not {start}; leave it "
                "out to begin now"
            )
        # `in` a tuple compares with ==: the clock's name as text is accepted, and an unhashable
        # value gets this message instead of a TypeError.
        if clock not in tuple(PunctuationType):
            raise ValueError(
                f"{self._node.node_name}: a schedule has no clock {clock!r}; give PunctuationType.STREAM_TIME or "
                "PunctuationType.WALL_CLOCK_TIME"
            )
        clock = PunctuationType(clock)
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


def _check_record(record: object, node: str) -> None:
    if not isinstance(record, Record):
        raise TypeError(
            f"{node}: forward takes a Record(key, value, timestamp), not an object of type {type(record).__name__}"
        )


def _checked_headers(headers: object, node: str) -> Headers:
    try:
        return as_headers(headers)
    except TypeError as error:
        raise TypeError(f"{node} forwarded a record whose {error}") from None


def _interval_ms(interval: Duration, node: str) -> int:
    advice = "give int milliseconds, a timedelta, or a text such as '30s'"
    if isinstance(interval, str):
        try:
            milliseconds = parse_ms(interval)
        except ValueError as error:
            raise ValueError(f"{node}: a schedule's interval {interval!r} {error}") from None
    elif isinstance(interval, timedelta):
        milliseconds = interval // timedelta(milliseconds=1)
    elif type(interval) is int:
        milliseconds = interval
    else:
        raise TypeError(
            f"{node}: a schedule's interval can't be of type {type(interval).__name__}; {advice}"
        )
    if milliseconds < 1:
        raise ValueError(
            f"{node}: a schedule's interval is at least 1 ms, not {milliseconds}; {advice}"
        )
    return milliseconds


def _check_callback(callback: object, node: str) -> None:
    if not callable(callback):
        kind = f"of type {type(callback).__name__}"
    elif iscoroutinefunction(callback):
        kind = "an async function"
    elif isgeneratorfunction(callback):
        kind = "a generator"
    elif not accepts_arguments(callback, 1):
        name = getattr(callback, "__qualname__", type(callback).__qualname__)
        kind = f"{name}, which can't be called with one timestamp"
    else:
        return
    raise TypeError(
        f"{node}: a schedule's callback must be a plain function of the time in ms, but it is {kind}"
    )


class _RecordContext(_NodeProcessingContext, ProcessorContext[Any, Any]):
    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        self.pass_on(record, child)


class _FixedKeyContext(_NodeProcessingContext, FixedKeyProcessorContext[Any, Any]):
    def forward(self, record: FixedKeyRecord[Any, Any], child: str | None = None) -> None:
        if not isinstance(record, FixedKeyRecord):  # pyright: ignore[reportUnnecessaryIsInstance] - users may be untyped
            raise TypeError(
                f"a fixed-key processor forwards the records it gets, changed with record.replace(value=...), not a "
                f"{type(record).__name__}"
            )
        self.pass_on(record.thawed(), child)


class DownstreamError(Exception):
    """Wrapper that carries a fatal error past the exception handlers of nodes upstream."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


#: Errors that are not of the current record: no exception handler is called.
_PASSING = (DownstreamError, StateStoreError)
