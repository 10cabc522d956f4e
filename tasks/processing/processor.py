"""The Processor API: nodes that users write themselves, record by record.

Semantics are those of Kafka Streams' `Processor`, `ProcessorContext` and `Punctuator`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from tasks.processing.record import Headers, Record, RecordMetadata

KIn = TypeVar("KIn")
VIn = TypeVar("VIn")
KOut = TypeVar("KOut")
VOut = TypeVar("VOut")


class PunctuationType(StrEnum):
    """The clock of a schedule.

    STREAM_TIME follows the timestamps of the task's records (aligned at 0, fires once for each step of the grid that
    was reached, gaps collapse); WALL_CLOCK_TIME follows the worker's clock (first after one interval).

    >>> PunctuationType("stream_time")
    <PunctuationType.STREAM_TIME: 'stream_time'>
    """

    STREAM_TIME = "stream_time"
    WALL_CLOCK_TIME = "wall_clock_time"


class Cancellable(ABC):
    """A schedule that can be ended.

    >>> class Once(Processor[str, str, str, str]):
    ...     def init(self, context: ProcessorContext[str, str]) -> None:
    ...         self.timer = context.schedule(1_000, PunctuationType.STREAM_TIME, self.fire)
    ...     def fire(self, now_ms: int) -> None:
    ...         self.timer.cancel()
    """

    @abstractmethod
    def cancel(self) -> None:
        """End the schedule; idempotent."""


class ProcessorContext(ABC, Generic[KOut, VOut]):
    """What a processor may ask of the task that runs it.

    >>> class Stamp(Processor[str, str, str, int]):
    ...     def process(self, record: Record[str, str]) -> None:
    ...         self.context.forward(record.replace(value=self.context.current_stream_time_ms()))
    """

    @property
    @abstractmethod
    def application_id(self) -> str:
        """Return the application's id."""

    @property
    @abstractmethod
    def task_id(self) -> str:
        """Return the task's id, as "0_1"."""

    @property
    @abstractmethod
    def state_dir(self) -> Path:
        """Return the directory of this task's state."""

    @property
    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Return the task's figures so far."""

    @property
    @abstractmethod
    def record_metadata(self) -> RecordMetadata | None:
        """Return where the current record stands; None in a punctuation."""

    @abstractmethod
    def forward(self, record: Record[KOut, VOut], child: str | None = None) -> None:
        """Pass a record to all children, or to the one named `child`, at once."""

    @abstractmethod
    def get_state_store(self, name: str) -> Any:
        """Return a store connected to this processor."""

    @abstractmethod
    def schedule(
        self,
        interval: timedelta | int,
        clock: PunctuationType,
        callback: Callable[[int], None],
        start: int | None = None,
    ) -> Cancellable:
        """Call `callback(timestamp_ms)` every `interval`; `start` (ms) anchors the grid."""

    @abstractmethod
    def commit(self) -> None:
        """Ask for a commit soon, after the current record."""

    @abstractmethod
    def current_stream_time_ms(self) -> int:
        """Return the task's stream time: the largest timestamp seen, -1 before the first record."""

    @abstractmethod
    def current_system_time_ms(self) -> int:
        """Return the worker's wall clock (ms since the epoch)."""


class Processor(Generic[KIn, VIn, KOut, VOut]):
    """A node that handles one record at a time; subclass it and override `process`.

    >>> class Upper(Processor[str, str, str, str]):
    ...     def process(self, record: Record[str, str]) -> None:
    ...         self.context.forward(record.replace(value=record.value.upper()))
    """

    context: ProcessorContext[KOut, VOut]

    def init(self, context: ProcessorContext[KOut, VOut]) -> None:
        """Called once before the first record; the default keeps the context as `self.context`."""
        self.context = context

    def process(self, record: Record[KIn, VIn]) -> None:
        """Handle one record."""
        raise NotImplementedError(f"{type(self).__name__} must override process(record)")

    def close(self) -> None:
        """Called once when the task closes."""


__all__ = [
    "Cancellable",
    "Headers",
    "Processor",
    "ProcessorContext",
    "PunctuationType",
]
