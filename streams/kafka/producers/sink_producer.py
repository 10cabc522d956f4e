"""Idempotent producer of at_least_once: the port `tidewheel.tasks.kafka.ports.SinkProducer`.

The client reports only failures, without an identifier. A failed record is found by its contents
among those sent since the last flush. Records with equal topic, key and value are interchangeable.
"""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from tidewheel.streams.kafka.client.client_log import ClientLog, error_of
from tidewheel.streams.kafka.client.codes import FATAL, INVALID_DIFFERENT_RECORD, MSG_TIMED_OUT
from tidewheel.streams.kafka.client.failures import failed_delivery, is_batch_refused
from tidewheel.streams.kafka.client.settings import ClientSettings, Config
from tidewheel.streams.kafka.producers.producer import (
    ProducerClient,
    RefusedError,
    StalledError,
    no_wait,
    not_measured,
)
from tidewheel.tasks.kafka.ports import FailedDelivery
from tidewheel.tasks.processing.engine.output import OutputColumns

#: Longer than `message.timeout.ms` (default 120 s): records time out before a flush does.
_FLUSH_TIMEOUT_S: Final = 600.0

_log = logging.getLogger(__name__)

_Place = tuple[int, int]


class _RecordError(NamedTuple):
    """A failed record's error; `batch` is the number of its refused batch in the flush."""

    error: KafkaError
    batch: int


class KafkaSinkProducer:
    """Producer of sink records and dead letters outside transactions, for one thread."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        on_wait: Callable[[], None] = no_wait,
        measured: Callable[[Config], Config] = not_measured,
    ) -> None:
        self._settings = settings
        self._measured = measured
        self._on_wait = on_wait
        self._reports: list[tuple[KafkaError, Message]] = []
        self._sent: list[OutputColumns] = []
        self._refused: dict[_Place, KafkaError] = {}
        self._producer = self._make()

    def produce(self, columns: OutputColumns) -> None:
        number = len(self._sent)
        self._sent.append(columns)
        refused = self._send(columns, 0, len(columns))
        self._refused |= {(number, index): error for index, error in refused.items()}
        self._producer.serve()

    def serve(self) -> None:
        self._producer.serve()

    def flush(self) -> list[FailedDelivery]:
        """Wait for all answers; return the failed records in the order of sending.

        Records of a refused batch are sent again in ever smaller parts, to find the bad one. Later
        records of the same keys are also repeated: a key's last record stays last, and some are
        written twice.
        """
        failed, self._refused = self._refused, {}
        sent, self._sent = self._sent, []
        places = [(number, index) for number, part in enumerate(sent) for index in range(len(part))]
        pending = self._settle(sent, places, failed)
        while pending:
            part = pending.pop()
            for number, start, stop in _runs(part):
                refused = self._send(sent[number], start, stop)
                failed |= {(number, index): error for index, error in refused.items()}
            pending += self._settle(sent, part, failed)
        return [
            failed_delivery(sent[number], index, error)
            for (number, index), error in sorted(failed.items(), key=lambda found: found[0])
        ]

    def _settle(
        self,
        sent: Sequence[OutputColumns],
        places: Sequence[_Place],
        failed: dict[_Place, KafkaError],
    ) -> list[list[_Place]]:
        """Wait for answers; return the parts to send again, last part first."""
        answers = self._answers(sent, places)
        again: dict[_Place, _RecordError] = {}
        for place, answer in answers.items():
            if is_batch_refused(answer.error) and len(places) > 1:
                again[place] = answer
            else:
                failed[place] = answer.error
        if not again:
            return []
        keys = {_key_of(sent, place) for place in again} - {None}
        first = min(again)
        part = [
            place
            for place in places
            if place in again
            or (place > first and place not in failed and _key_of(sent, place) in keys)
        ]
        return _parts(part, again, len(places))[::-1]

    def close(self, wait_s: float = 0.0) -> None:
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
        measured: dict[str, Any] = self._measured(self._settings.sink())
        config: dict[str, Any] = measured | {"on_delivery": self._on_failure}
        log = ClientLog(config["client.id"], with_debug="debug" in config)
        return ProducerClient(config, log, stall_timeout_s=_FLUSH_TIMEOUT_S, on_wait=self._on_wait)

    def _on_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._reports.append((error, message))

    def _send(self, columns: OutputColumns, start: int, stop: int) -> dict[int, KafkaError]:
        refused: dict[int, KafkaError] = {}
        while start < stop:
            try:
                self._producer.send(columns, start, stop)
            except RefusedError as refusal:
                refused[refusal.index] = refusal.error
                start = refusal.index + 1
                if _is_fatal(refusal.error):
                    self._renew()
            except StalledError as stalled:
                error = KafkaError(MSG_TIMED_OUT, "the cluster accepted no records")
                refused |= dict.fromkeys(range(stalled.index, stop), error)
                break
            else:
                break
        return refused

    def _answers(
        self, sent: Sequence[OutputColumns], places: Sequence[_Place]
    ) -> dict[_Place, _RecordError]:
        forbidden: KafkaError | None = None
        try:
            answered = self._producer.flush(time.monotonic() + _FLUSH_TIMEOUT_S)
        except KafkaException as exception:
            cause = error_of(exception)
            if not cause.fatal():
                raise
            answered = False
            if cause.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                forbidden = cause
        if not answered or any(_is_fatal(error) for error, _ in self._reports):
            self._renew()
        reports = [(forbidden or error, message) for error, message in self._reports]
        self._reports = []
        return _located(reports, sent, places) if reports else {}

    def _renew(self) -> None:
        """Replace a failed client; its unsent records fail as retriable."""
        self._producer.client.purge()
        self._producer.serve()
        self._producer.drop()
        self._producer = self._make()


def _located(
    reports: Sequence[tuple[KafkaError, Message]],
    sent: Sequence[OutputColumns],
    places: Sequence[_Place],
) -> dict[_Place, _RecordError]:
    """Return the reported records' errors; finds records by topic, key and value."""
    errors: defaultdict[tuple[Any, ...], deque[_RecordError]] = defaultdict(deque)
    batch = 0
    for error, message in reports:
        if message.offset() is None:  # Only a refused batch's first record has no offset.
            batch += 1
        content = (message.topic(), message.key() or None, message.value() or None)
        errors[content].append(_RecordError(error, batch))
    topics = {message.topic() for _, message in reports}
    located: dict[_Place, _RecordError] = {}
    for number, index in places:
        columns = sent[number]
        if columns.topic not in topics:
            continue
        content = (columns.topic, columns.keys[index] or None, columns.values[index] or None)
        waiting = errors.get(content)
        if waiting:
            located[number, index] = waiting.popleft()
    assert len(located) == len(reports), "every report is of a record sent since the last flush"
    return located


def _runs(places: Sequence[_Place]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of adjacent records: number of the columns, first index, index after the last.

    >>> list(_runs([(0, 3), (0, 4), (0, 6), (1, 7)]))
    [(0, 3, 5), (0, 6, 7), (1, 7, 8)]
    """
    start = 0
    for end in range(1, len(places) + 1):
        number, index = places[end - 1]
        if end == len(places) or places[end] != (number, index + 1):
            yield number, places[start][1], index + 1
            start = end


def _key_of(sent: Sequence[OutputColumns], place: _Place) -> tuple[str, bytes] | None:
    columns = sent[place[0]]
    key = columns.keys[place[1]]
    return None if key is None else (columns.topic, key)


def _parts(
    places: Sequence[_Place], answers: Mapping[_Place, _RecordError], most: int
) -> list[list[_Place]]:
    """Split records to send again into parts, in order, each of fewer than `most` records.

    Each record named by the broker is a part of its own; other batches are halved.
    """
    batches_with_named = {
        entry.batch for entry in answers.values() if entry.error.code() == INVALID_DIFFERENT_RECORD
    }
    kinds: list[tuple[object, _Place]] = []
    kind: object = None
    for place in places:
        answer = answers.get(place)
        if answer is not None:
            is_named = (
                answer.batch in batches_with_named
                and answer.error.code() != INVALID_DIFFERENT_RECORD
            )
            kind = (
                place
                if is_named
                else ("told" if answer.batch in batches_with_named else answer.batch)
            )
        elif isinstance(kind, tuple):
            kind = "told"
        kinds.append((kind, place))
    parts: list[list[_Place]] = []
    for kind, group in groupby(kinds, key=lambda entry: entry[0]):
        part = [place for _, place in group]
        if kind != "told" or len(part) >= most:
            middle = max(len(part) // 2, 1)
            parts += [half for half in (part[:middle], part[middle:]) if half]
        else:
            parts.append(part)
    return parts


def _is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() == FATAL
