"""Transactional producer of the worker: the port `tidewheel.tasks.kafka.ports.TransactionalProducer`.

State: new → (init) → ready → (begin) → open → (commit, abort) → ready; or ended by fencing or an
unknown outcome. Success counts only if the client's log shows no lost connection, whose request
may arrive late (H8).
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.failpoints import failpoint
from tidewheel.streams.errors import FencedError, StreamsError
from tidewheel.streams.kafka.client.advice import next_step
from tidewheel.streams.kafka.client.client_log import (
    ClientLog,
    TransactionLog,
    error_of,
    make_client,
)
from tidewheel.streams.kafka.client.codes import READ_FORBIDDEN, TIMED_OUT, TOO_LARGE, is_transient
from tidewheel.streams.kafka.client.failures import (
    Outcome,
    is_record_refused,
    outcome_of,
    refusal_in,
)
from tidewheel.streams.kafka.client.settings import ClientSettings, Config
from tidewheel.streams.kafka.consumers.offsets_readers import own_partition
from tidewheel.streams.kafka.producers.producer import (
    GuardedCall,
    ProducerClient,
    RefusedError,
    StalledError,
    StuckError,
    no_wait,
    not_measured,
)
from tidewheel.streams.kafka.producers.refused_search import BATCH_BYTES, RefusedSearch
from tidewheel.streams.kafka.producers.trial_producer import TrialProducer
from tidewheel.tasks.commit.output_collector import batch_ends
from tidewheel.tasks.kafka.ports import (
    CommitOutcomeUnknownError,
    CommittedOffset,
    FailedDelivery,
    TransactionAbortedError,
    UnansweredError,
)
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.output import OutputColumns, headers_of_changelog

#: Seconds to wait for the answer to sent offsets, usually milliseconds. After that, `GuardedCall`
#: raises `StuckError`, which ends the producer.
_SEND_OFFSETS_S: Final = 5.0

_log = logging.getLogger(__name__)


class KafkaTransactionalProducer:
    """One transactional id's producer, for one thread at a time.

    After `call_timeout_s` a call's outcome is unknown.
    """

    def __init__(
        self,
        settings: ClientSettings,
        transactional_id: str,
        transaction_timeout_ms: int,
        *,
        call_timeout_s: float = 30.0,
        on_wait: Callable[[], None] = no_wait,
        measured: Callable[[Config], Config] = not_measured,
    ) -> None:
        self._settings = settings
        self._transactional_id = transactional_id
        self._timeout_s = call_timeout_s
        config = measured(settings.transactional(transactional_id, transaction_timeout_ms))
        self._log = TransactionLog(config["client.id"], with_debug="debug" in settings.producer)
        self._producer = ProducerClient(
            config, self._log, stall_timeout_s=call_timeout_s, on_wait=on_wait
        )
        self._on_wait = on_wait
        #: Most bytes per batch, for topics that refuse the client's batches as too large.
        self._batch_bytes: dict[str, int] = {}
        self._batch_was_too_large = False
        self._open = False
        self._ended: FencedError | CommitOutcomeUnknownError | None = None
        #: Offset after the last acknowledged changelog record.
        self._positions: dict[TopicPartition, int] = {}
        #: Group and offsets of the last `send_offsets`.
        self._sent: tuple[str, Mapping[TopicPartition, CommittedOffset]] = ("", {})
        self._groups: dict[str, Any] = {}
        #: Group of the offsets that were sent last: shards have groups of their own.
        self._offsets_group = settings.application_id

    @property
    def transactional_id(self) -> str:
        return self._transactional_id

    @property
    def acknowledged(self) -> Mapping[TopicPartition, int]:
        return dict(self._positions)

    def init(self) -> None:
        try:
            self._call(self._producer.named("init_transactions"))
            self._group(self._settings.application_id, time.monotonic() + self._timeout_s)
        except KafkaException as exception:
            error = error_of(exception)
            if outcome_of(error, ending=False) is Outcome.FENCED:
                self._end(FencedError(self._error_text("init", error)))
            error = self._log.cause_of(error)
            kind = UnansweredError if is_transient(error) else StreamsError
            raise kind(
                f"producer {self._transactional_id}: can't start its first transaction on "
                f"{self._settings.bootstrap_servers}: {error.name()}: {error.str()}; {next_step(error)}"
            ) from exception

    def serve(self) -> None:
        if self._ended is None:  # An ended client is gone; the next call reports it.
            self._producer.serve()

    def begin(self) -> None:
        self._check_usable()
        assert not self._open, "one transaction at a time: commit or abort the open one"
        self._producer.serve()  # Delivers earlier log lines, which belong to no transaction.
        self._log.transaction_begins()
        self._positions, self._sent = {}, ("", {})
        try:
            self._producer.client.begin_transaction()
        except KafkaException as exception:
            self._fail("begin", error_of(exception))
        self._open = True

    def produce(self, columns: OutputColumns) -> None:
        self._check_open()
        self._send(columns, f"produce to {columns.topic}")

    def produce_changelog(
        self,
        partition: TopicPartition,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        headers: Headers = (),
        *,
        row_headers: Sequence[Headers] | None = None,
    ) -> None:
        self._check_open()
        if not keys:
            return
        records = OutputColumns(
            topic=partition.topic,
            partitions=partition.partition,
            keys=keys,
            values=values,
            timestamps=timestamps,
            headers=headers_of_changelog(len(keys), headers, row_headers),
        )
        # Only the last record has a delivery callback: it is answered after all others.
        self._send(records, f"produce to changelog {partition}", reports_last=True)

    def _send(self, columns: OutputColumns, what: str, *, reports_last: bool = False) -> None:
        count = len(columns)
        limit = self._batch_bytes.get(columns.topic)
        try:
            start = 0
            for stop in [count] if limit is None else batch_ends(columns, limit):
                last = stop - 1 if reports_last and stop == count else stop
                if start < last:
                    self._producer.send(columns, start, last)
                if last < stop:
                    self._producer.send(columns, last, stop, self._on_delivery)
                start = stop
                if limit is not None and not self._flush(time.monotonic() + self._timeout_s):
                    self._fail(what, self._unanswered())
        except RefusedError as refused:
            self._fail(what, refused.error)
        except StalledError:
            self._fail(what, _stalled())
        except KafkaException as exception:
            self._fail(what, error_of(exception))
        self._producer.serve()

    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        self._check_open()
        if not offsets:
            return
        deadline_s = time.monotonic() + self._timeout_s / 2
        try:
            sending = self._begin_offsets(group_id, offsets, deadline_s)
            self._end_offsets(group_id, sending, deadline_s)
        except KafkaException as exception:
            self._fail("send offsets", error_of(exception))
        # After a lost connection, this request could arrive after that of `commit` and overwrite
        # its newer offsets. So end the producer then.
        self._check_doubt("send offsets")
        self._log.offsets_are_answered()
        self._sent = group_id, dict(offsets)

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, int]:
        self._check_open()
        failpoint("before_flush")
        deadline_s = time.monotonic() + self._timeout_s
        ending = False
        try:
            self._have_answered(group_id, offsets, deadline_s)
            ending = True
            failpoint("before_commit")
            self._producer.call(self._producer.named("commit_transaction"), deadline_s=deadline_s)
            failpoint("after_commit")
        except KafkaException as exception:
            self._fail("commit", error_of(exception), ending=ending)
        self._open = False
        self._check_doubt("commit")
        return self._positions

    def abort(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            self._call(self._producer.named("abort_transaction"))
        except KafkaException as exception:
            error = error_of(exception)
            if outcome_of(error, ending=True) is Outcome.FENCED:
                self._end(FencedError(self._error_text("abort", error)))
            self._end(CommitOutcomeUnknownError(self._error_text("abort", error)))
        self._check_doubt("abort")

    def find_refused(self, columns: Sequence[OutputColumns]) -> list[FailedDelivery]:
        self._check_usable()
        assert not self._open, "the search for refused records needs transactions of its own"
        with TrialProducer(
            self._settings,
            self._transactional_id,
            call_timeout_s=self._timeout_s,
            on_wait=self._on_wait,
        ) as trials:
            search = RefusedSearch(trials, columns)
            refused = search.run()
        self._limit_batches(search.batch_bytes)
        if not refused and self._batch_was_too_large:
            # The search's smaller batches were accepted: halve the batches.
            self._limit_batches(
                {
                    output.topic: self._batch_bytes.get(output.topic, BATCH_BYTES * 2) // 2
                    for output in columns
                }
            )
        return refused

    def _limit_batches(self, batch_bytes: Mapping[str, int]) -> None:
        for topic, size in batch_bytes.items():
            if size < self._batch_bytes.get(topic, sys.maxsize):
                self._batch_bytes[topic] = size
                _log.warning(
                    "topic %s refuses batches of good records as too large; sending %d bytes at a time. Raise its "
                    "max.message.bytes, or set producer={'batch.size': ...} below it, which is faster",
                    topic,
                    size,
                )

    def close(self) -> None:
        self._open = False
        self._producer.drop()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None and offset >= 0:
            key = TopicPartition(message.topic() or "", message.partition() or 0)
            self._positions[key] = offset + 1

    def _have_answered(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        deadline_s: float,
    ) -> None:
        """Wait until the cluster has answered records and offsets.

        Else the client's commit would wait for the records, and can't be aborted meanwhile.
        """
        if not offsets or (group_id, offsets) == self._sent:
            if not self._flush(deadline_s):
                self._fail("flush", self._unanswered())
            return
        sending = self._begin_offsets(group_id, offsets, deadline_s)
        try:
            flushed = self._flush(deadline_s, lambda: self._record_answer(sending))
        except KafkaException as exception:
            # The client accepts no abort while it sends offsets.
            if outcome_of(error_of(exception), ending=False) is not Outcome.FENCED:
                self._end_offsets(group_id, sending, self._soon(deadline_s))
            raise
        self._end_offsets(group_id, sending, self._soon(deadline_s))
        if not flushed:
            self._fail("flush", self._unanswered())

    def _flush(self, deadline_s: float, meanwhile: Callable[[], None] = no_wait) -> bool:
        return self._producer.flush(deadline_s, meanwhile, is_over=lambda: self._log.failure)

    def _unanswered(self) -> KafkaError:
        if self._log.failure:
            return refusal_in(self._log.failure) or KafkaError(
                TIMED_OUT, "the transaction has failed meanwhile"
            )
        return _stalled()

    def _record_answer(self, sending: GuardedCall) -> None:
        """Record an answer to the offsets: a later loss of their broker is harmless."""
        if sending.has_succeeded:
            self._producer.serve()  # Reads the log lines from before the answer.
            self._log.offsets_are_answered()

    def _begin_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], deadline_s: float
    ) -> GuardedCall:
        self._offsets_group = group_id
        group = self._group(group_id, deadline_s)
        self._producer.serve()
        failpoint("before_offsets")
        self._log.offsets_are_sent()
        return self._producer.begin_call(
            self._producer.named("send_offsets_to_transaction"),
            [KafkaPartition(*partition, *committed) for partition, committed in offsets.items()],
            group,
            deadline_s=deadline_s,
        )

    def _soon(self, deadline_s: float) -> float:
        return min(deadline_s, time.monotonic() + _SEND_OFFSETS_S)

    def _end_offsets(self, group_id: str, sending: GuardedCall, deadline_s: float) -> None:
        try:
            sending.end(deadline_s)
        except StuckError:
            self._end(
                CommitOutcomeUnknownError(
                    f"producer {self._transactional_id}: sending the offsets of group {group_id} is stuck in the client; "
                    "nothing was committed; replace the producer"
                )
            )

    def _group(self, group_id: str, deadline_s: float) -> Any:
        """Return group metadata.

        The consumer also waits for the group coordinator: without it `send_offsets` gets stuck.
        """
        metadata = self._groups.get(group_id)
        if metadata is None:
            config = self._settings.group(group_id)
            log = ClientLog(config["client.id"])
            consumer = make_client(Consumer, "consumer", config, log)
            try:
                anything = [own_partition(self._settings.application_id)]
                self._producer.call(
                    consumer.committed, anything, deadline_s=deadline_s, is_later=is_transient
                )
                metadata = self._groups[group_id] = consumer.consumer_group_metadata()
            except KafkaException as exception:
                consumer.poll(0)
                raise KafkaException(log.cause_of(error_of(exception))) from exception
            finally:
                consumer.close()
        return metadata

    def _call(self, operation: Callable[..., Any]) -> None:
        self._producer.call(operation, deadline_s=time.monotonic() + self._timeout_s)

    def _check_usable(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)

    def _check_open(self) -> None:
        self._check_usable()
        assert self._open, "begin a transaction first"

    def _check_doubt(self, what: str) -> None:
        self._producer.serve()
        if self._log.doubt:
            self._end(
                CommitOutcomeUnknownError(
                    f"producer {self._transactional_id}: {what}: a request of this transaction may arrive late: "
                    f"{self._log.doubt}; replace the producer and read back the committed offsets"
                )
            )

    def _fail(self, what: str, error: KafkaError, *, ending: bool = False) -> NoReturn:
        self._producer.serve()
        message = self._error_text(what, error)
        match outcome_of(error, ending=ending):
            case Outcome.FENCED:
                self._end(FencedError(message))
            case Outcome.UNKNOWN:
                self._end(CommitOutcomeUnknownError(message))
            case Outcome.ABORT:
                cause = refusal_in(self._log.failure) or error
                if cause.code() in READ_FORBIDDEN:
                    self._forbidden(message)
                refused = is_record_refused(error, self._log.failure)
                self._batch_was_too_large = cause.code() in TOO_LARGE
                self.abort()
                raise TransactionAbortedError(message, record_refused=refused)

    def _forbidden(self, message: str) -> NoReturn:
        topic, group = self._log.forbidden, self._offsets_group
        with suppress(CommitOutcomeUnknownError):
            self.abort()
        right = f"WRITE on topic {topic}" if topic else f"READ on these inputs and on group {group}"
        raise StreamsError(f"{message}; grant this principal {right}")

    def _end(self, reason: FencedError | CommitOutcomeUnknownError) -> NoReturn:
        self._open = False
        self._ended = reason
        raise reason

    def _error_text(self, what: str, error: KafkaError) -> str:
        cause = f"; {self._log.failure}" if self._log.failure else ""
        return f"producer {self._transactional_id}: {what}: {error.name()}: {error.str()}{cause}"


def _stalled() -> KafkaError:
    return KafkaError(TIMED_OUT, "the cluster accepted no records for too long")
