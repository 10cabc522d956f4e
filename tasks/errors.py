"""Errors of running tasks. Users import them from `streams`."""

from tidewheel.state_stores.errors import SerdeError, StateStoreError, StreamsError


class SerializationError(SerdeError):
    """A key or value could not be turned into bytes or back; names topic, partition, offset and serde.

    >>> raise SerializationError("int64 serde, topic 'orders': can't deserialise (3 bytes, expected 8)")
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.SerializationError: int64 serde, topic 'orders': can't deserialise (3 bytes, expected 8)
    """


class SchemaRegistryError(StreamsError):
    """A schema registry can't be reached, or refuses what a serde asks; names the registry and the next step.

    No record is at fault, so no exception handler is asked and nothing is skipped: the worker stops, and starts again
    where it was.

    >>> raise SchemaRegistryError("schema registry http://localhost:8081 can't be reached; start it, or correct its URL")
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.SchemaRegistryError: schema registry http://localhost:8081 can't be reached; start it, or correct its URL
    """


class TaskCorruptedError(StreamsError):
    """A task's state can't be trusted; its directory is wiped and the state restored from the changelog.

    `task_id` is the task's, as "0_1".

    >>> TaskCorruptedError("task 0_1: a block is damaged", task_id="0_1").task_id
    '0_1'
    """

    def __init__(self, message: str, *, task_id: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id


class GlobalStoreDamagedError(StateStoreError):
    """The global stores of this process can't be trusted; they are wiped and restored before tasks run again."""


class FencedError(StreamsError):
    """This worker was replaced by a newer producer of its id, or fenced by the group. Never retried.

    `final`: the process must not rejoin its group by itself. `code` is the reason, as in
    `tidewheel.rebalance.protocol.messages.JoinRefused`, or "FENCED".

    >>> raise FencedError('producer shop-fixed-0: commit: _FENCED: a newer producer of this id exists')
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.FencedError: producer shop-fixed-0: commit: _FENCED: a newer producer of this id exists
    """

    def __init__(self, message: str = "", *, final: bool = False, code: str = "FENCED") -> None:
        super().__init__(message)
        self.final = final
        self.code = code


class MissingSourceTopicError(StreamsError):
    """A source topic does not exist; names it and how to create it or wait for it.

    >>> raise MissingSourceTopicError('source topic orders not found; create it, or start with --create-topics')
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.MissingSourceTopicError: source topic orders not found; create it, or start with --create-topics

    `topic` is the one that was read until now, where that is known.
    """

    def __init__(self, message: str = "", *, topic: str | None = None) -> None:
        super().__init__(message)
        self.topic = topic


class InternalTopicError(StreamsError):
    """An internal topic has another number of partitions than the application needs now; names it and both numbers.

    >>> raise InternalTopicError('internal topic shop-counts-changelog has 2 partitions but the application needs 3')
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.InternalTopicError: internal topic shop-counts-changelog has 2 partitions but the application needs 3
    """


class StartRefusedError(StreamsError):
    """A task must not start at its committed offsets; names the input partition and the way out."""


class OutdatedGrantError(StartRefusedError):
    """A later owner has committed for the task: the grant was revoked, or the group log was lost."""


class CopartitioningError(StreamsError):
    """Topics whose keys come together have different numbers of partitions; names each with its number.

    Kafka Streams: "Following topics do not have the same number of partitions", of its CopartitionedTopicsEnforcer.

    >>> raise CopartitioningError('sub-topology 0 needs topics with equal partition counts, but a has 2, b has 3')
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.CopartitioningError: sub-topology 0 needs topics with equal partition counts, but a has 2, b has 3
    """


class MissingOutputTopicError(StreamsError):
    """A topic that is written to does not exist; output topics are never created by themselves.

    >>> raise MissingOutputTopicError('output topic totals does not exist; create it')
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.MissingOutputTopicError: output topic totals does not exist; create it
    """


class RecordFailedError(StreamsError):
    """A record failed and its exception handler returned "fail"; names node, topic, partition, offset.

    `topic`, `partition` and `offset` are those of the input record, or None for a record without one
    (a punctuation, a cache flush).

    >>> RecordFailedError("failed in processing", topic="orders", partition=2, offset=41).offset
    41
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class LateRecordError(StreamsError):
    """A record came too late to count; never raised: dead letters of late records bear its name and text.

    Names operator, timestamp, stream time, and the limit it missed. See `late_records_to_dead_letter_queue`.

    >>> str(LateRecordError("KSTREAM-AGGREGATE-0000000001 (task 0_1): timestamp 3 came too late"))
    'KSTREAM-AGGREGATE-0000000001 (task 0_1): timestamp 3 came too late'
    """


class RecordTooLargeError(StreamsError):
    """A record is larger than its topic accepts; names topic, size and limit (bytes)."""
