"""Base of the producers: calls librdkafka's `produce` with positional arguments, by column.

`produce(topic, value, key, partition, callback, on_delivery, timestamp[, headers])`: a timestamp in
sixth place is silently ignored, and keyword arguments halve the speed.
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

#: Seconds of one blocking call; after it `on_wait` is called, and the call repeated.
SLICE_S: Final = 0.5

#: Seconds of one flush. From 0.2 s on, confluent-kafka has a bug: after fencing it calls our log
#: with an exception pending, which ends the process.
_FLUSH_SLICE_S: Final = 0.15

#: Seconds past its deadline after which a call counts as stuck.
_STUCK_S: Final = 2.0

DeliveryCallback = Callable[[KafkaError | None, Message], None]


def no_wait() -> None: ...


def not_measured(config: Config) -> Config:
    return config


class RefusedError(Exception):
    def __init__(self, index: int, error: KafkaError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class StalledError(Exception):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class StuckError(Exception):
    """A call exceeded its timeout by far; the client is unusable."""


class ProducerClient:
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
        # The client would send the current time for timestamp 0, so 0 becomes 1.
        is_plain = all(islice(timestamps, start, stop))
        times = timestamps if is_plain else [timestamp or 1 for timestamp in timestamps]
        sent: list[None] = []
        position = start
        moved_at = time.monotonic()
        while position < stop:
            columns: list[Any] = [
                repeat(topic, stop - position),  # The shortest column: `map` ends with it.
                islice(values, position, None),
                islice(keys, position, None),
                repeat(partitions)
                if isinstance(partitions, int)
                else islice(partitions, position, None),
                repeat(callback),
                repeat(None),
                islice(times, position, None),
            ]
            if headers is not None:
                columns.append(map(list, islice(headers, position, None)))
            sent.clear()
            try:
                # `sent` gets an item per accepted record: after an error, `at + len(taken)` is the
                # rejected record's index.
                sent.extend(map(self.client.produce, *columns))
            except BufferError:
                position += len(sent)
                if sent:
                    moved_at = time.monotonic()
                self._make_room(position, moved_at)
            except KafkaException as exception:
                raise RefusedError(position + len(sent), error_of(exception)) from exception
            else:
                return

    def _make_room(self, index: int, moved_at: float) -> None:
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
        try:
            self.client.poll(wait_s)
        except KafkaException as exception:
            # Later calls report a fatal error again, with more context.
            if not error_of(exception).fatal():
                raise

    def flush(
        self,
        deadline_s: float,
        meanwhile: Callable[[], None] = no_wait,
        *,
        is_over: Callable[[], object] = no_wait,
    ) -> bool:
        """Wait until every record is answered; return False after the timeout.

        Raises KafkaException when fenced. Stops once `is_over` returns true: a failed transaction
        sends nothing more.
        """
        while self.client.flush(max(min(deadline_s - time.monotonic(), _FLUSH_SLICE_S), 0)) > 0:
            if time.monotonic() >= deadline_s or is_over():
                return False
            self._on_wait()
            meanwhile()
        return True

    def named(self, name: str) -> Callable[..., Any]:
        """Return a client operation without a reference to the client.

        An error's traceback would keep a bound method's client alive. When brokers return, that
        client could fence its successor.
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
        self.call_until(lambda: deadline_s, operation, *arguments, is_later=is_later)

    def call_until(
        self,
        deadline_s: Callable[[], float],
        operation: Callable[..., Any],
        *arguments: Any,
        is_later: Callable[[KafkaError], bool] = KafkaError.retriable,
    ) -> None:
        while True:
            left = max(deadline_s() - time.monotonic(), 0)
            try:
                operation(*arguments, min(left, SLICE_S) or 0.001)
            except KafkaException as exception:
                error = error_of(exception)
                if not is_later(error) or error.txn_requires_abort() or left <= 0:
                    raise
                self.serve(0.02)  # Avoids a busy loop on immediate errors.
                self._on_wait()
            else:
                return

    def begin_call(
        self, operation: Callable[..., Any], *arguments: Any, deadline_s: float
    ) -> "GuardedCall":
        return GuardedCall(self, self._on_wait, operation, arguments, deadline_s)

    def drop(self) -> None:
        """Drop the client without `close`, which waits minutes for an abort if a broker hangs."""
        self.client = None


class GuardedCall:
    """A call on its own thread, which is abandoned if it never returns.

    librdkafka 2.16 stops asking for a coordinator after the third "not available", and ignores its
    timeout. send_offsets_to_transaction then waits until some connection changes.
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
        return self._outcome == [None]

    def end(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        while not self._outcome:
            self._thread.join(SLICE_S)
            if not self._outcome and time.monotonic() > deadline_s + _STUCK_S:
                raise StuckError
            if not self._outcome:
                self._on_wait()
        if self._outcome[0] is not None:
            raise self._outcome[0]
