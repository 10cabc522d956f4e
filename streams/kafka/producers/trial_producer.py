"""The producer of `RefusedSearch`: sends records in transactions that it aborts."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidewheel.rebalance.producer_ids import SEARCH_SUFFIX
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.client.advice import next_step
from tidewheel.streams.kafka.client.client_log import TransactionLog, error_of, make_client
from tidewheel.streams.kafka.client.codes import is_transient
from tidewheel.streams.kafka.client.failures import is_batch_refused, is_retriable, refusal_in
from tidewheel.streams.kafka.client.settings import SEARCH_TIMEOUT_MS, ClientSettings
from tidewheel.streams.kafka.producers.producer import SLICE_S, no_wait
from tidewheel.streams.kafka.producers.refused_search import Batch, Trial
from tidewheel.tasks.kafka.ports import TransactionAbortedError, UnansweredError
from tidewheel.tasks.processing.engine.output import OutputColumns

#: Seconds for which trials share one transaction, far below its timeout.
_TRANSACTION_S: Final = 5.0
_ANSWER_S: Final = SEARCH_TIMEOUT_MS / 1000 * 2 / 3
_POLL_S: Final = 0.05

#: Key, value and timestamp (0: now) of a record that every topic accepts.
_CANARY: Final = (b"canary", b"", 0)

_log = logging.getLogger(__name__)


class TrialProducer:
    """Producer of one search for the records that the broker refuses.

    Its transactional id differs from the worker's: a refusal leaves librdkafka without a valid
    sequence number, which would delay the worker.
    """

    def __init__(
        self,
        settings: ClientSettings,
        transactional_id: str,
        *,
        call_timeout_s: float,
        on_wait: Callable[[], None] = no_wait,
    ) -> None:
        self._id = transactional_id + SEARCH_SUFFIX
        self._servers = settings.bootstrap_servers
        self._timeout_s = call_timeout_s
        self._on_wait = on_wait
        config = settings.search(self._id)
        self._log = _SearchLog(config["client.id"], with_debug="debug" in config)
        self._client: Any = make_client(Producer, "producer", config, self._log)
        self._opened_s: float | None = None

    def __enter__(self) -> Self:
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                self._client.init_transactions(SLICE_S)
            except KafkaException as exception:
                error = error_of(exception)
                if error.retriable() and time.monotonic() < deadline_s:
                    self._on_wait()
                    continue
                kind = UnansweredError if is_transient(error) else StreamsError
                raise kind(
                    f"producer {self._id}: can't start to search for the records that {self._servers} refuses: "
                    f"{error.name()}: {error.str()}; {next_step(error)}"
                ) from exception
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._abort()
        finally:
            self._client = None

    def trial(self, columns: Sequence[OutputColumns], batches: Sequence[Batch]) -> Trial:
        if self._opened_s is not None and time.monotonic() - self._opened_s > _TRANSACTION_S:
            self._abort()
        if self._opened_s is None:
            self._begin()
        reports: list[dict[int, list[KafkaError | None]]] = [{} for _ in batches]
        for batch, report in zip(batches, reports, strict=True):
            self._send(columns, batch, report)
        self._await(reports)
        has_failed = self._log.failure or any(map(_has_errors, reports))
        if has_failed:
            self._abort()
        answers = [
            {
                position: answer[0]
                for position, outcome in report.items()
                if (answer := _final_answer(outcome, batch.copies)) is not None
            }
            for batch, report in zip(batches, reports, strict=True)
        ]
        failure = (
            refusal_in(self._log.failure) or KafkaError(KafkaError.UNKNOWN, self._log.failure)
            if has_failed
            else None
        )
        return Trial(answers, failure)

    def _begin(self) -> None:
        self._client.poll(0)
        self._log.transaction_begins()
        try:
            self._client.begin_transaction()
        except KafkaException as exception:
            self._fail(error_of(exception))
        self._opened_s = time.monotonic()

    def _send(
        self,
        columns: Sequence[OutputColumns],
        batch: Batch,
        reports: dict[int, list[KafkaError | None]],
    ) -> None:
        def on_delivery(position: int, error: KafkaError | None, _: Message) -> None:
            reports.setdefault(position, []).append(error)

        for position, row in enumerate(batch.rows):
            part, index = columns[row.part], row.at
            record: list[Any] = [
                batch.topic,
                part.values[index],
                part.keys[index],
                batch.partition,
                partial(on_delivery, position),
                None,
                part.timestamps[index] or 1,  # The client would replace 0 by now.
            ]
            if part.headers is not None:
                record.append(list(part.headers[index]))
            for _ in range(batch.copies):
                try:
                    self._client.produce(*record)
                except KafkaException as exception:
                    # The client rejects the record. Or the transaction has failed: then the error
                    # is `_STATE`, which `_final_answer` ignores.
                    reports[position] = [error_of(exception)] * batch.copies
                    return
                except BufferError as full:
                    raise TransactionAbortedError(
                        f"producer {self._id}: the cluster accepted no records for too long"
                    ) from full
        if batch.has_canary:
            key, value, timestamp = _CANARY
            for _ in range(batch.copies):
                self._client.produce(
                    batch.topic, value, key, batch.partition, partial(on_delivery, len(batch.rows)),
                    None, timestamp,
                )  # fmt: skip

    def _await(self, reports: Sequence[dict[int, list[KafkaError | None]]]) -> None:
        deadline_s = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline_s:
            try:
                left = self._client.flush(_POLL_S)
            except KafkaException as exception:
                if error_of(exception).fatal():
                    self._fail(error_of(exception))
                return
            if left == 0 or self._log.failure or any(map(_has_errors, reports)):
                return
            self._on_wait()

    def _abort(self) -> None:
        if self._opened_s is None:
            return
        self._opened_s = None
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                self._client.abort_transaction(SLICE_S)
            except KafkaException as exception:
                error = error_of(exception)
                if not error.retriable() or time.monotonic() > deadline_s:
                    self._fail(error)
                self._client.poll(_POLL_S)
                self._on_wait()
            else:
                return

    def _fail(self, error: KafkaError) -> NoReturn:
        raise TransactionAbortedError(
            f"producer {self._id}: the search for refused records failed: {error.name()}: {error.str()}"
        )


class _SearchLog(TransactionLog):
    """Logs refusals, which are expected here, as debug lines."""

    __slots__ = ()

    def forward(self, level: int, kind: str, text: str) -> None:
        del level, kind
        _log.debug("%s", text)


def _has_errors(reports: dict[int, list[KafkaError | None]]) -> bool:
    return any(error is not None for report in reports.values() for error in report)


def _final_answer(
    reports: Sequence[KafkaError | None], copies: int
) -> tuple[KafkaError | None] | None:
    """Return a record's error, or None if a copy was accepted, as a 1-tuple.

    Return None if the record must be sent again: answers are missing or temporary.
    """
    if any(
        error is None for error in reports
    ):  # `None in` fails: KafkaError compares only with numbers
        return (None,)
    if len(reports) < copies or not all(map(_is_final, reports)):
        return None
    return (reports[0],)


def _is_final(error: KafkaError | None) -> bool:
    return error is None or is_batch_refused(error) or not is_retriable(error)
