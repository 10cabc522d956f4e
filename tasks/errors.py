"""Errors of running tasks. Users import them from `streams`."""

from tidewheel.state_stores.errors import SerdeError, StateStoreError, StreamsError


class SerializationError(SerdeError):
    """A serde can't read or write a key or value; names serde, topic and reason, never the data.

    Next step:
        Use the serde that fits the topic, or skip such records.

    >>> raise SerializationError("int64 serde, topic 'orders': can't deserialise (3 bytes, expected 8)")
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.SerializationError: int64 serde, topic 'orders': can't deserialise (3 bytes, expected 8)
    """


class SchemaRegistryError(StreamsError):
    """A schema registry is unreachable, refuses a schema, or lacks a subject or a reference.

    The record is valid, so no handler is called and nothing is skipped. The worker stops; its
    next start resumes at the committed offsets.

    Next step:
        See the message. Commands that load the program end with this error, too.

    >>> raise SchemaRegistryError("schema registry http://localhost:8081 can't be reached; start it, or correct its URL")
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.SchemaRegistryError: schema registry http://localhost:8081 can't be reached; start it, or correct its URL
    """


class TaskCorruptedError(StreamsError):
    """A task's state is damaged; it is wiped and restored from the changelog.

    The worker ends with this error if the state is damaged again before a commit.

    Next step:
        Check the disk of `state_dir`.

    >>> TaskCorruptedError("task 0_1: a block is damaged", task_id="0_1").task_id
    '0_1'
    """

    def __init__(self, message: str, *, task_id: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id


class GlobalStoreDamagedError(StateStoreError):
    """The process's global stores are damaged; they are restored before tasks resume."""


class FencedError(StreamsError):
    """Another live process took over this one's place. Never retried.

    The place is its `group_instance_id`, or its tasks without a group.

    Next step:
        Find the second copy; give each its own `group_instance_id` or `--tasks`.

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


class SinkFailedError(StreamsError):
    """A sink outside Kafka failed as often as its `retries` allow; names it and the last error.

    Next step:
        Correct the cause and start again; no row is lost.

    >>> raise SinkFailedError("sink orders (task 1_0): PostgresUpsert orders fails: connection refused")
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.SinkFailedError: sink orders (task 1_0): PostgresUpsert orders fails: connection refused
    """


class MissingSourceTopicError(StreamsError):
    """A source topic does not exist, or was deleted meanwhile; names it.

    So does a topic of a pattern that was deleted and created again within a moment.

    Next step:
        Create it, or start with `--wait-for-topics` or `--create-topics`.

    >>> raise MissingSourceTopicError('source topic orders not found; create it, or start with --create-topics')
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.MissingSourceTopicError: source topic orders not found; create it, or start with --create-topics

    `topic`: the deleted topic, if the worker was reading it.
    """

    def __init__(self, message: str = "", *, topic: str | None = None) -> None:
        super().__init__(message)
        self.topic = topic


class InternalTopicError(StreamsError):
    """An internal topic has the wrong partition count, because an input grew; names both counts.

    Next step:
        `tidewheel reset`, or restore its partition count.

    >>> raise InternalTopicError('internal topic shop-counts-changelog has 2 partitions but the application needs 3')
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.InternalTopicError: internal topic shop-counts-changelog has 2 partitions but the application needs 3
    """


class StartRefusedError(StreamsError):
    """A task must not start at its committed offsets; names the input partition and the way out."""


class SinkBehindError(StartRefusedError):
    """A sink's stored positions are behind its flushes.

    It was restored from an older copy, or emptied while the worker ran.

    Next step:
        `tidewheel reset MODULE:TOPOLOGY` writes all rows again.

    >>> raise SinkBehindError("sink orders stores position 1 of orders-0, but rows up to offset 9 were flushed")
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.SinkBehindError: sink orders stores position 1 of orders-0, but rows up to offset 9 were flushed
    """


class OutdatedGrantError(StartRefusedError):
    """A later owner of the task has committed: our grant was revoked, or the group log lost."""


class CopartitioningError(StreamsError):
    """Topics whose keys come together have different partition counts; names each with its count.

    Next step:
        Give them equal counts, or `repartition()` one side. The supervisor restarts the worker:
        the topics may be growing one after the other.

    >>> raise CopartitioningError('sub-topology 0 needs topics with equal partition counts, but a has 2, b has 3')
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.CopartitioningError: sub-topology 0 needs topics with equal partition counts, but a has 2, b has 3
    """


class MissingOutputTopicError(StreamsError):
    """A topic that is written to does not exist.

    Next step:
        Create it; output topics are never created automatically.

    >>> raise MissingOutputTopicError('output topic totals does not exist; create it')
    Traceback (most recent call last):
    ...
    tidewheel.tasks.errors.MissingOutputTopicError: output topic totals does not exist; create it
    """


class RecordFailedError(StreamsError):
    """A record's exception handler answered `fail`; names node, topic, partition, offset.

    Next step:
        Correct the program, or set the handler to `continue` with a dead-letter topic; it
        resumes at this record.

    `topic`, `partition` and `offset` are the input record's; None for punctuations and cache
    flushes.

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
    """A record came too late for its operator. Never raised: only dead letters have this error.

    Its text has operator, timestamp, stream time and limit (`late_records_to_dead_letter_queue`).

    >>> str(LateRecordError("KSTREAM-AGGREGATE-0000000001 (task 0_1): timestamp 3 came too late"))
    'KSTREAM-AGGREGATE-0000000001 (task 0_1): timestamp 3 came too late'
    """


class RecordTooLargeError(StreamsError):
    """A record is larger than its topic accepts; names topic, size and limit (bytes)."""
