"""The idempotent producer of at_least_once: the port `tasks.ports.SinkProducer`.

Only failures come back from the client (`delivery.report.only.error`), without a mark of our own: a record is found
again by its contents among what was sent since the last flush. That costs nothing until something fails. Records that
are equal in topic, key and value stand for each other, in the order in which they were sent.
"""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message

from streams.kafka.client_log import ClientLog, error_of
from streams.kafka.codes import FATAL, MSG_TIMED_OUT
from streams.kafka.failures import failed_delivery, is_batch_refused
from streams.kafka.producer import ProducerClient, RefusedError, StalledError, no_wait
from streams.kafka.settings import ClientSettings, Config
from tasks.ports import FailedDelivery
from tasks.processing.output import OutputColumns

#: Longer than the client's own limit for a record (`message.timeout.ms`), so that this never ends a flush first.
_FLUSH_TIMEOUT_S: Final = 600.0

_log = logging.getLogger(__name__)

_Row = tuple[OutputColumns, int]


class KafkaSinkProducer:
    """Sends sinks and dead letters at once, outside transactions. One thread calls it.

    Args:
        settings: What clients are made from.
        on_wait: Called about twice a second while a call waits, so that a watchdog sees that we live.
    """

    def __init__(self, settings: ClientSettings, *, on_wait: Callable[[], None] = no_wait) -> None:
        self._settings = settings
        self._on_wait = on_wait
        self._reports: list[tuple[KafkaError, Message]] = []
        #: What was sent since the last flush.
        self._sent: list[OutputColumns] = []
        #: What the client did not take at all.
        self._refused: list[FailedDelivery] = []
        self._producer = self._make()

    def produce(self, columns: OutputColumns) -> None:
        """Send records; failures are told by `flush`."""
        self._sent.append(columns)
        self._refused += self._send(columns, 0, len(columns))
        self._producer.serve()

    def flush(self) -> list[FailedDelivery]:
        """Wait until every record is answered; return those that failed, each once.

        What the broker refused as part of a batch is sent again in halves until only the culprits are left.
        """
        failures, self._refused = self._refused, []
        sent, self._sent = self._sent, []
        answers = self._answers((each, index) for each in sent for index in range(len(each)))
        parts: list[list[_Row]] = []
        alone = False
        while True:
            failures += [
                failed_delivery(*row, error)
                for row, error in answers
                if alone or not is_batch_refused(error)
            ]
            if not alone:
                parts += _halves([row for row, error in answers if is_batch_refused(error)])
            if not parts:
                return failures
            part = parts.pop()
            alone = len(part) == 1
            for columns, index in part:
                failures += self._send(columns, index, index + 1)
            answers = self._answers(part)

    def close(self, wait_s: float = 0.0) -> None:
        """Let the client go, once the brokers have answered or `wait_s` are over; idempotent."""
        if wait_s and self._producer.client is not None:
            try:
                answered = self._producer.flush(time.monotonic() + wait_s)
            except KafkaException as exception:
                _log.warning("the last records may be lost: %s", error_of(exception).str())
            else:
                if not answered:
                    _log.warning("no answer to the last records within %.0f s", wait_s)
        self._producer.drop()

    def _make(self) -> ProducerClient:
        config: Config = self._settings.sink() | {"on_delivery": self._on_failure}
        log = ClientLog(config["client.id"], with_debug="debug" in config)
        return ProducerClient(config, log, stall_timeout_s=_FLUSH_TIMEOUT_S, on_wait=self._on_wait)

    def _on_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._reports.append((error, message))

    def _send(self, columns: OutputColumns, start: int, stop: int) -> list[FailedDelivery]:
        """Send records; return those that the client did not take."""
        refused: list[FailedDelivery] = []
        while start < stop:
            try:
                self._producer.send(columns, start, stop)
            except RefusedError as refusal:
                refused.append(failed_delivery(columns, refusal.index, refusal.error))
                start = refusal.index + 1
                if _is_fatal(refusal.error):
                    self._renew()
            except StalledError as stalled:
                error = KafkaError(MSG_TIMED_OUT, "the cluster took no records")
                refused += [
                    failed_delivery(columns, index, error) for index in range(stalled.index, stop)
                ]
                break
            else:
                break
        return refused

    def _answers(self, rows: Iterable[_Row]) -> list[tuple[_Row, KafkaError]]:
        """Wait for every answer; return which of `rows` failed, and why, in the order of `rows`."""
        try:
            answered = self._producer.flush(time.monotonic() + _FLUSH_TIMEOUT_S)
        except KafkaException as exception:
            if not error_of(exception).fatal():
                raise
            answered = False
        if not answered or any(_is_fatal(error) for error, _ in self._reports):
            self._renew()
        reports, self._reports = self._reports, []
        return _located(reports, rows) if reports else []

    def _renew(self) -> None:
        """Replace a client that can't go on; what it had not sent comes back as failures that may be sent again."""
        self._producer.client.purge()
        self._producer.serve()
        self._producer.drop()
        self._producer = self._make()


def _located(
    reports: list[tuple[KafkaError, Message]], rows: Iterable[_Row]
) -> list[tuple[_Row, KafkaError]]:
    """Return the row of each report, by content; failed records come back without their timestamps and headers."""
    errors: defaultdict[tuple[Any, ...], deque[KafkaError]] = defaultdict(deque)
    for error, message in reports:
        content = (message.topic(), message.key() or None, message.value() or None)
        errors[content].append(error)
    topics = {message.topic() for _, message in reports}
    found: list[tuple[_Row, KafkaError]] = []
    for columns, index in rows:
        if columns.topic not in topics:
            continue
        content = (columns.topic, columns.keys[index] or None, columns.values[index] or None)
        waiting = errors.get(content)
        if waiting:
            found.append(((columns, index), waiting.popleft()))
    assert len(found) == len(reports), "every report is of a record sent since the last flush"
    return found


def _halves(rows: list[_Row]) -> list[list[_Row]]:
    """Return rows in two parts, the first half last; a single one is a part."""
    middle = len(rows) // 2
    return [part for part in (rows[middle:], rows[:middle]) if part]


def _is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() == FATAL
