"""The only place that calls librdkafka's `produce`, by position and by the column.

`produce(topic, value, key, partition, callback, on_delivery, timestamp[, headers])`: a timestamp given in sixth place
is swallowed silently and the record gets the wall clock; by keyword it is half as fast. A contract test reads all four
parts back from a broker.
"""

import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice, repeat
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidewheel.streams.kafka.client.client_log import ClientLog, error_of, make_client
from tidewheel.streams.kafka.client.settings import Config
from tidewheel.tasks.processing.engine.output import OutputColumns

#: How long one call into the client waits before the caller is told that we still wait.
SLICE_S: Final = 0.5

#: The same for flush, whose Python binding has a fault from 0.2 s on: it goes on serving callbacks after a fatal
#: error (being fenced) has set an exception, so our log is called with one pending and the process ends in nonsense.
_FLUSH_SLICE_S: Final = 0.15

#: How long after its own time limit a call that has not returned counts as stuck.
_STUCK_S: Final = 2.0

DeliveryCallback = Callable[[KafkaError | None, Message], None]


def no_wait() -> None:
    """Be told that a call is still waiting for the cluster; this one does nothing with it."""


class RefusedError(Exception):
    """The client did not take the record at `index`; those before it were taken."""

    def __init__(self, index: int, error: KafkaError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class StalledError(Exception):
    """The client's queue stayed full: the cluster takes nothing. Records before `index` were taken."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class StuckError(Exception):
    """A call into the client did not return long after its own time limit; the client is of no more use."""


class ProducerClient:
    """One librdkafka producer and its log. One thread at a time calls it, and beside it at most one `GuardedCall`."""

    def __init__(
        self,
        config: Config,
        log: ClientLog,
        *,
        stall_timeout_s: float,
        on_wait: Callable[[], None] = no_wait,
    ) -> None:
        self.client: Any = make_client(Producer, "producer", config, log)
        self._stall_timeout_s = stall_timeout_s
        self._on_wait = on_wait

    def send(
        self,
        columns: OutputColumns,
        start: int,
        stop: int,
        callback: DeliveryCallback | None = None,
    ) -> None:
        """Hand records start..stop to the client; raises RefusedError or StalledError at the one it does not take."""
        self.send_columns(
            columns.topic, columns.partitions, columns.keys, columns.values, columns.timestamps,
            headers=columns.headers, start=start, stop=stop, callback=callback,
        )  # fmt: skip

    def send_columns(
        self,
        topic: str,
        partitions: int | Sequence[int],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        *,
        headers: Sequence[Any] | None = None,
        start: int = 0,
        stop: int,
        callback: DeliveryCallback | None = None,
    ) -> None:
        """Hand rows start..stop of the columns to the client."""
        # The client takes 0 for "now"; a millisecond off is nearer to the truth than half a century.
        is_plain = all(islice(timestamps, start, stop))
        times = timestamps if is_plain else [each or 1 for each in timestamps]
        taken: list[None] = []
        at = start
        moved_at = time.monotonic()
        while at < stop:
            columns: list[Any] = [
                repeat(topic, stop - at),  # the first to end, so it bounds the others
                islice(values, at, None),
                islice(keys, at, None),
                repeat(partitions) if isinstance(partitions, int) else islice(partitions, at, None),
                repeat(callback),
                repeat(None),
                islice(times, at, None),
            ]
            if headers is not None:
                columns.append(map(list, islice(headers, at, None)))
            taken.clear()
            try:
                # `extend` keeps what came before an exception, so its length tells how far the client went.
                taken.extend(map(self.client.produce, *columns))
            except BufferError:
                at += len(taken)
                if taken:
                    moved_at = time.monotonic()
                self._make_room(at, moved_at)
            except KafkaException as exception:
                raise RefusedError(at + len(taken), error_of(exception)) from exception
            else:
                return

    def _make_room(self, index: int, moved_at: float) -> None:
        """Wait until the client's queue has room for the record at `index`."""
        if len(self.client) == 0:
            raise RefusedError(
                index,
                KafkaError(
                    KafkaError.MSG_SIZE_TOO_LARGE,
                    "the record is larger than the client's queue (queue.buffering.max.kbytes)",
                ),
            )
        if time.monotonic() - moved_at > self._stall_timeout_s:
            raise StalledError(index)
        self.serve(0.05)
        self._on_wait()

    def serve(self, wait_s: float = 0) -> None:
        """Run the callbacks and take the log lines that are due, or that come within `wait_s`."""
        try:
            self.client.poll(wait_s)
        except KafkaException as exception:
            # A fatal error is told here once and by every later call again, which knows better what it means.
            if not error_of(exception).fatal():
                raise

    def flush(
        self,
        deadline_s: float,
        meanwhile: Callable[[], None] = no_wait,
        *,
        is_over: Callable[[], object] = no_wait,
    ) -> bool:
        """Wait until every record is answered; False if that took longer. Raises KafkaException when fenced.

        While that takes long, `meanwhile` is called several times a second. Once `is_over` returns something true, what is not
        answered is not waited for: the client sends nothing more in a transaction that has failed.
        """
        while self.client.flush(max(min(deadline_s - time.monotonic(), _FLUSH_SLICE_S), 0)) > 0:
            if time.monotonic() >= deadline_s or is_over():
                return False
            self._on_wait()
            meanwhile()
        return True

    def named(self, name: str) -> Callable[..., Any]:
        """Return the client's operation of this name, which does not keep the client.

        An error's traceback holds what was called. A bound method in it would keep a client that was dropped for as long
        as somebody keeps the error; once brokers are back, it would start its transactions, too, and fence its successor.
        """

        def operation(*arguments: Any) -> Any:
            return getattr(self.client, name)(*arguments)

        operation.__name__ = name
        return operation

    def call(
        self,
        operation: Callable[..., Any],
        *arguments: Any,
        deadline_s: float,
        is_later: Callable[[KafkaError], bool] = KafkaError.retriable,
    ) -> None:
        """Call an operation that takes a time limit last, again while its error means "later", until the deadline."""
        self.call_until(lambda: deadline_s, operation, *arguments, is_later=is_later)

    def call_until(
        self,
        deadline_s: Callable[[], float],
        operation: Callable[..., Any],
        *arguments: Any,
        is_later: Callable[[KafkaError], bool] = KafkaError.retriable,
    ) -> None:
        """The same with a deadline that may change meanwhile."""
        while True:
            left = max(deadline_s() - time.monotonic(), 0)
            try:
                operation(*arguments, min(left, SLICE_S) or 0.001)
            except KafkaException as exception:
                error = error_of(exception)
                if not is_later(error) or error.txn_requires_abort() or left <= 0:
                    raise
                self.serve(0.02)  # an error that came at once would have us spin
                self._on_wait()
            else:
                return

    def begin_call(
        self, operation: Callable[..., Any], *arguments: Any, deadline_s: float
    ) -> "GuardedCall":
        """Begin the same as `call` beside what the caller does; it has to be ended before the next call."""
        return GuardedCall(self, self._on_wait, operation, arguments, deadline_s)

    def drop(self) -> None:
        """Let the client go without waiting for the cluster.

        Its own `close` waits for the cluster's answer to an abort, for minutes if the broker hangs; a client that is
        only let go ends at once, and whoever takes over its id fences it.
        """
        self.client = None


class GuardedCall:
    """A call into the client that may never return, on a thread of its own, which is left behind then.

    librdkafka 2.16 forgets to ask again for a group's coordinator after the third "not available", and its time
    limit with it: send_offsets_to_transaction then waits until some broker's connection changes, perhaps for ever.
    """

    def __init__(
        self,
        client: ProducerClient,
        on_wait: Callable[[], None],
        operation: Callable[..., Any],
        arguments: Sequence[Any],
        deadline_s: float,
    ) -> None:
        self._client, self._on_wait = client, on_wait
        self._operation, self._arguments = operation, arguments
        self._deadline_s = deadline_s
        #: What came of it, once it has returned.
        self._outcome: list[BaseException | None] = []
        self._thread = threading.Thread(target=self._run, name="send-offsets", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._client.call_until(lambda: self._deadline_s, self._operation, *self._arguments)
        except BaseException as error:  # noqa: BLE001 - raised where the call is ended
            self._outcome.append(error)
        else:
            self._outcome.append(None)

    @property
    def has_succeeded(self) -> bool:
        """Return whether it has returned, and raised nothing."""
        return self._outcome == [None]

    def end(self, deadline_s: float) -> None:
        """Wait until it has returned, no longer than until then; raises what it raised, or StuckError."""
        self._deadline_s = deadline_s
        while not self._outcome:
            self._thread.join(SLICE_S)
            if not self._outcome and time.monotonic() > deadline_s + _STUCK_S:
                raise StuckError
            if not self._outcome:
                self._on_wait()
        if self._outcome[0] is not None:
            raise self._outcome[0]
