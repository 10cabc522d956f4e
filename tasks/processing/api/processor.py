"""The Processor API: users' own nodes, record by record.

Semantics are those of Kafka Streams' `Processor`, `ProcessorContext` and `Punctuator`.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from tidewheel.tasks.durations import Duration
from tidewheel.tasks.processing.api.app_configs import AppConfigs
from tidewheel.tasks.processing.api.record import FixedKeyRecord, Headers, Record, RecordMetadata

KIn = TypeVar("KIn")
VIn = TypeVar("VIn")
KOut = TypeVar("KOut")
VOut = TypeVar("VOut")


class PunctuationType(StrEnum):
    """The clock of a schedule.

    STREAM_TIME follows the timestamps of the task's records. Without `start`, calls are due at
    multiples of the interval; those missed in a gap become one. WALL_CLOCK_TIME follows the
    worker's clock, first after one interval.

    >>> PunctuationType("stream_time")
    <PunctuationType.STREAM_TIME: 'stream_time'>
    """

    STREAM_TIME = "stream_time"
    WALL_CLOCK_TIME = "wall_clock_time"


class Cancellable(ABC):
    """A schedule that can be cancelled.

    >>> class Once(Processor[str, str, str, str]):
    ...     def init(self, context: ProcessorContext[str, str]) -> None:
    ...         self.timer = context.schedule(1_000, PunctuationType.STREAM_TIME, self.fire)
    ...     def fire(self, now_ms: int) -> None:
    ...         self.timer.cancel()
    """

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the schedule; idempotent."""


class ProcessingContext(ABC):
    """The task's services for processors of both kinds (Kafka Streams' ProcessingContext).

    Call it from the task's thread only.

    >>> from tidewheel import StreamsBuilder, StreamsConfig
    >>> from tidewheel.testing import TopologyTestDriver
    >>> class Show(FixedKeyProcessor[str, str, str]):
    ...     def process(self, record: FixedKeyRecord[str, str]) -> None:
    ...         context = self.context
    ...         print(context.application_id, context.task_id, context.current_system_time_ms(), context.state_dir.name)
    ...         print(context.app_configs()["commit_interval_ms"], context.app_configs_with_prefix("consumer."))
    >>> builder = StreamsBuilder()
    >>> _ = builder.stream("in", key_serde=str, value_serde=str).process_values(Show)
    >>> config = StreamsConfig(application_id="shop", bootstrap_servers="unused:9092", consumer={"fetch.min.bytes": 64})
    >>> with TopologyTestDriver(builder.build(), config, initial_wall_clock_ms=7) as driver:
    ...     driver.create_input_topic("in", key_serde=str, value_serde=str).pipe_input("k", "v")
    shop 0_0 7 0_0
    100 AppConfigs({'fetch.min.bytes': 64})
    """

    @property
    @abstractmethod
    def application_id(self) -> str: ...

    @property
    @abstractmethod
    def task_id(self) -> str:
        """Return the task's id, such as "0_1"."""

    @property
    @abstractmethod
    def state_dir(self) -> Path:
        """Return the directory of this task's state."""

    @abstractmethod
    def app_configs(self) -> AppConfigs:
        """Return the application's settings by name, nested ones as `consumer.fetch.min.bytes`.

        Printing the mapping shows no secret; printing one of its values may.
        """

    @abstractmethod
    def app_configs_with_prefix(self, prefix: str) -> AppConfigs:
        """Return the settings with a name prefix, such as `"consumer."`, without the prefix."""

    @property
    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Return the task's metrics."""

    @property
    @abstractmethod
    def record_metadata(self) -> RecordMetadata | None:
        """Return topic, partition and offset of the current input record; None in a punctuation."""

    @abstractmethod
    def get_state_store(self, name: str) -> Any:
        """Return a store connected to this processor, or a read-only global store.

        A store of `add_state_store` is the object its builder makes; one of `add_read_only_state_store` rejects writes.
        Call it in `init` and keep the result.

        Raises:
            StreamsError: No such store is connected; the message names the connected ones.
        """

    @abstractmethod
    def schedule(
        self,
        interval: Duration,
        clock: PunctuationType,
        callback: Callable[[int], None],
        start: int | None = None,
    ) -> Cancellable:
        """Call `callback(timestamp_ms)` every `interval` of a clock.

        Missed intervals give one call. Without `start`, stream time fires at multiples of the
        interval, first with the first record; the wall clock fires first after one interval (Kafka
        Streams' PunctuationSchedule).

        Args:
            interval: From 1 ms.
            clock: The clock whose time the callback receives.
            callback: A plain function of the time (ms since the epoch).
            start: First call (ms since the epoch); if it is past, the next `start + n * interval` (KIP-1146).

        Raises:
            TypeError: `interval` is no duration, `start` no int, `callback` no plain function.
            ValueError: `interval` is below 1 ms, `start` below 0, or the clock is unknown.
        """

    @abstractmethod
    def commit(self) -> None:
        """Request a commit of the worker after the current record; return before it happens."""

    @abstractmethod
    def current_stream_time_ms(self) -> int:
        """Return the task's stream time: the largest timestamp seen, -1 before the first record."""

    @abstractmethod
    def current_system_time_ms(self) -> int:
        """Return the worker's wall clock (ms since the epoch)."""


class ProcessorContext(ProcessingContext, Generic[KOut, VOut]):
    """The task's services for a processor (Kafka Streams' ProcessorContext).

    >>> class Stamp(Processor[str, str, str, int]):
    ...     def process(self, record: Record[str, str]) -> None:
    ...         self.context.forward(record.replace(value=self.context.current_stream_time_ms()))

    With a store and a timer, run by a test driver:

    >>> from tidewheel import Stores, StreamsBuilder
    >>> from tidewheel.testing import TopologyTestDriver
    >>> class PerMinute(Processor[str, str, str, int]):
    ...     def init(self, context: ProcessorContext[str, int]) -> None:
    ...         super().init(context)
    ...         self.counts = context.get_state_store("counts")
    ...         context.schedule(60_000, PunctuationType.STREAM_TIME, self.emit)
    ...     def process(self, record: Record[str, str]) -> None:
    ...         self.counts.put(record.key, self.counts.get(record.key, 0) + 1)
    ...         print(self.context.task_id, self.context.record_metadata, self.context.current_stream_time_ms())
    ...     def emit(self, now_ms: int) -> None:
    ...         for key, count in list(self.counts.all()):
    ...             self.context.forward(Record(key, count, now_ms))
    ...             self.counts.delete(key)
    ...         self.context.commit()
    >>> builder = StreamsBuilder()
    >>> _ = builder.add_state_store(Stores.key_value("counts", key_serde=str, value_serde=int))
    >>> lines = builder.stream("in", key_serde=str, value_serde=str)
    >>> lines.process(PerMinute, stores=["counts"]).foreach(lambda key, count: print(key, count))
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     source = driver.create_input_topic("in", key_serde=str, value_serde=str)
    ...     source.pipe_input("k", "v", timestamp=1_000)
    ...     source.pipe_key_values([("k", "w")])
    ...     source.pipe_input("k", "x", timestamp=61_000)
    0_0 RecordMetadata(topic='in', partition=0, offset=0) 1000
    k 1
    0_0 RecordMetadata(topic='in', partition=0, offset=1) 1000
    0_0 RecordMetadata(topic='in', partition=0, offset=2) 61000
    k 2
    """

    @abstractmethod
    def forward(self, record: Record[KOut, VOut], child: str | None = None) -> None:
        """Send a record to all children, or to the child named `child`, before returning.

        An `async` processor's records are sent when its coroutine has ended, in order.

        Raises:
            TypeError: The argument is no `Record`, or its headers are no (name, bytes) pairs.
            ValueError: The timestamp is no int of ms since the epoch from 0 on, or the child does not exist.
            Exception: A fatal error downstream; it stops the worker even if user code catches it.
        """


class FixedKeyProcessorContext(ProcessingContext, Generic[KOut, VOut]):
    """The task's services for a fixed-key processor; it forwards `FixedKeyRecord`s.

    >>> class Age(FixedKeyProcessor[str, str, int]):
    ...     def process(self, record: FixedKeyRecord[str, str]) -> None:
    ...         age_ms = self.context.current_stream_time_ms() - record.timestamp
    ...         self.context.forward(record.replace(value=age_ms))
    """

    @abstractmethod
    def forward(self, record: FixedKeyRecord[KOut, VOut], child: str | None = None) -> None:
        """Send a record to all children, or to one; see `ProcessorContext.forward`."""


class Processor(Generic[KIn, VIn, KOut, VOut]):
    """A node that handles one record at a time; subclass it and override `process`.

    `process` may be `async def`: each record is then handled to its end before the next. A class attribute (or class
    method) `stores` may list store builders to connect (Kafka Streams' ConnectedStoreProvider).

    >>> class Upper(Processor[str, str, str, str]):
    ...     def process(self, record: Record[str, str]) -> None:
    ...         self.context.forward(record.replace(value=record.value.upper()))
    """

    #: Set it to True if processing a record uses only store rows of the record's key. A task may
    #: then have one processor per key range (`parallelising_factor`), which sees its own keys'
    #: rows.
    keyed: ClassVar[bool] = False

    context: ProcessorContext[KOut, VOut]

    def init(self, context: ProcessorContext[KOut, VOut]) -> None:
        """Called once before the first record; the default keeps the context as `self.context`."""
        self.context = context

    def process(self, record: Record[KIn, VIn]) -> Awaitable[None] | None:
        """Handle one record."""
        raise NotImplementedError(f"{type(self).__name__} must override process(record)")

    def close(self) -> None: ...


class FixedKeyProcessor(Generic[KIn, VIn, VOut]):
    """A processor that cannot change keys, so no repartitioning follows; for `process_values`.

    Subclass it and override `process`, as with `Processor`. Records are `FixedKeyRecord`s.

    >>> class Upper(FixedKeyProcessor[str, str, str]):
    ...     def process(self, record: FixedKeyRecord[str, str]) -> None:
    ...         self.context.forward(record.replace(value=record.value.upper()))
    """

    #: See `Processor.keyed`.
    keyed: ClassVar[bool] = False

    context: FixedKeyProcessorContext[KIn, VOut]

    def init(self, context: FixedKeyProcessorContext[KIn, VOut]) -> None:
        """See `Processor.init`."""
        self.context = context

    def process(self, record: FixedKeyRecord[KIn, VIn]) -> Awaitable[None] | None:
        """Handle one record."""
        raise NotImplementedError(f"{type(self).__name__} must override process(record)")

    def close(self) -> None: ...


__all__ = [
    "Cancellable",
    "FixedKeyProcessor",
    "FixedKeyProcessorContext",
    "Headers",
    "ProcessingContext",
    "Processor",
    "ProcessorContext",
    "PunctuationType",
]
