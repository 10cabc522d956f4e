"""Finds the records for which a transaction was refused.

Each refusal costs an aborted transaction and, on the next one, a new epoch: about a second. So the search takes from
every attempt what it tells: records that were answered well are good, and an invalid record is named by the broker.
Only the records of a batch that is too large go again one by one, which takes a millisecond or two for each good one.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from confluent_kafka import KafkaError

from streams.errors import StreamsError
from streams.kafka.codes import INVALID_DIFFERENT_RECORD
from streams.kafka.failures import failed_delivery, is_batch_refused
from tasks.ports import FailedDelivery, TransactionAbortedError
from tasks.processing.output import OutputColumns

#: Attempts in a row that tell nothing; after a refusal one is normal, while the epoch is raised.
_FRUITLESS_ATTEMPTS: Final = 5

_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


class Trials(Protocol):
    """What can send records and take them back."""

    def trial(self, columns: OutputColumns, indices: Sequence[int]) -> dict[int, KafkaError | None]:
        """Send records; return what the cluster said of those it answered. Nothing becomes visible."""
        ...


class RefusedSearch:
    """The search among the records of one topic."""

    def __init__(self, trials: Trials, columns: OutputColumns) -> None:
        self._trials = trials
        self._columns = columns
        self._refused: dict[int, KafkaError] = {}
        #: Records nobody has spoken for or against yet.
        self._open = set(range(len(columns)))
        self._fruitless = 0

    def run(self) -> list[FailedDelivery]:
        """Return the refused records in order."""
        blamed_together = False
        while self._open:
            suspects = self._suspects(self._try(sorted(self._open)))
            blamed_together = blamed_together or len(suspects) > 1
            for index in sorted(suspects):
                self._try_alone(index)
        if blamed_together and not self._refused:
            raise StreamsError(
                f"topic {self._columns.topic}: its max.message.bytes is below the client's batch size, so batches of good "
                "records are refused; raise it, or set producer={'batch.size': ...} below it"
            )
        return [
            failed_delivery(self._columns, index, error)
            for index, error in sorted(self._refused.items())
        ]

    def _suspects(self, answers: dict[int, KafkaError | None]) -> set[int]:
        """Note what answers say for certain; return the records of batches that were too large."""
        suspects: set[int] = set()
        for index, error in answers.items():
            if error is None:
                self._open.discard(index)
            elif error.code() in _TOO_LARGE:
                suspects.add(index)
            elif error.code() != INVALID_DIFFERENT_RECORD:
                self._refuse(index, error)
                if not is_batch_refused(
                    error
                ):  # the topic refuses, so nobody need ask for the rest
                    for other in list(self._open):
                        self._refuse_like(other, index, error)
        return suspects & self._open

    def _try_alone(self, index: int) -> None:
        while index in self._open:
            answers = self._try([index])
            error = answers.get(index)
            if error is not None and error.code() != INVALID_DIFFERENT_RECORD:
                self._refuse(index, error)
            elif index in answers:
                self._open.discard(index)

    def _try(self, indices: Sequence[int]) -> dict[int, KafkaError | None]:
        answers = self._trials.trial(self._columns, indices)
        self._fruitless = 0 if answers else self._fruitless + 1
        if self._fruitless >= _FRUITLESS_ATTEMPTS:
            raise TransactionAbortedError(
                f"topic {self._columns.topic}: the cluster does not answer, so nobody can tell which records it refuses"
            )
        return answers

    def _refuse(self, index: int, error: KafkaError) -> None:
        self._open.discard(index)
        self._refused[index] = error

    def _refuse_like(self, other: int, index: int, error: KafkaError) -> None:
        """Refuse another record for the same reason, if that does not depend on the partition."""
        partitions = self._columns.partitions
        if isinstance(partitions, int) or partitions[other] == partitions[index]:
            self._refuse(other, error)
