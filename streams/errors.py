"""All exceptions that Tidewheel raises on purpose, below `StreamsError`.

    StreamsError
    ├── TopologyError              the program does not describe a runnable topology
    ├── ConfigError                a setting is unknown, malformed or contradicts another
    ├── SerializationError         a key or value can't be turned into bytes or back
    ├── SchemaRegistryError        a schema registry is down, or refuses a schema
    ├── StateStoreError            a store could not be opened, read or written
    │   ├── StoreLockedError       another process holds the state directory
    │   ├── InvalidStateStoreError the store is closed, elsewhere, or not open yet
    │   │   └── QueryTimeoutError  the worker did not give its uncommitted rows in time
    │   ├── StoredRowError         a stored row can't be read by the serde of its store
    │   └── StoreCorruptedError    the database failed its own checks and is restored
    ├── TaskCorruptedError         a task's state can't be trusted and is restored
    ├── FencedError                another live worker took over; never retried
    ├── MissingSourceTopicError    a source topic does not exist
    ├── MissingOutputTopicError    an output topic does not exist
    ├── InternalTopicError         an internal topic has the wrong number of partitions
    ├── CopartitioningError        joined topics have different numbers of partitions
    ├── RecordFailedError          a record's exception handler returned "fail"
    ├── SinkFailedError            a sink outside Kafka failed too often
    ├── SinkBehindError            a sink outside Kafka has lost rows that were flushed
    ├── RefusedError               something that still runs, or has run, is in the way
    ├── ApplicationShutdownError   an uncaught exception handler ended the application
    └── IncompatibleMemberError    this program can't join the group it was started for

Messages name the topic, partition, offset, store or option, and the next step. They contain no
secret and no whole record.
"""

from tidewheel.state_stores.errors import (
    InvalidStateStoreError,
    QueryTimeoutError,
    StateStoreError,
    StoreCorruptedError,
    StoredRowError,
    StoreLockedError,
    StreamsError,
)
from tidewheel.tasks.errors import (
    CopartitioningError,
    FencedError,
    InternalTopicError,
    MissingOutputTopicError,
    MissingSourceTopicError,
    RecordFailedError,
    SchemaRegistryError,
    SerializationError,
    SinkBehindError,
    SinkFailedError,
    TaskCorruptedError,
)

__all__ = [
    "ApplicationShutdownError",
    "ConfigError",
    "CopartitioningError",
    "FencedError",
    "IncompatibleMemberError",
    "InternalTopicError",
    "InvalidStateStoreError",
    "MissingOutputTopicError",
    "MissingSourceTopicError",
    "QueryTimeoutError",
    "RecordFailedError",
    "SchemaRegistryError",
    "SerializationError",
    "SinkBehindError",
    "SinkFailedError",
    "StateStoreError",
    "StoreCorruptedError",
    "StoreLockedError",
    "StoredRowError",
    "StreamsError",
    "TaskCorruptedError",
    "TopologyError",
]


class TopologyError(StreamsError):
    """The topology can't run; names the operator and the user's line.

    Next step:
        Correct the operator and line that it names.

    >>> raise TopologyError("filter (app.py:12): the predicate takes three parameters; give it one or two")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.TopologyError: filter (app.py:12): the predicate takes three parameters; give it one or two
    """


class ConfigError(StreamsError):
    """A setting is unknown, bad, or contradicts another; names option, value and source.

    Next step:
        Correct the value at its source; `tidewheel config show` lists all.

    >>> raise ConfigError("heartbeat_interval_ms=10 (keyword): must be at least 50; use 500, the default")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.ConfigError: heartbeat_interval_ms=10 (keyword): must be at least 50; use 500, the default
    """


class RefusedError(StreamsError):
    """A command changed nothing, because something that still runs, or has run, is in its way.

    Next step:
        See the message: it names what to stop or to reset.

    >>> raise RefusedError("shop: the group has 2 live members; stop them first")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.RefusedError: shop: the group has 2 live members; stop them first
    """


class ApplicationShutdownError(StreamsError):
    """A member's uncaught exception handler answered "shutdown_application".

    Names the member and its error.

    Next step:
        Correct that member's error, then start the workers again.

    >>> raise ApplicationShutdownError("member a has ended the whole application after ValueError: no such city")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.ApplicationShutdownError: member a has ended the whole application after ValueError: no such city
    """


class IncompatibleMemberError(StreamsError):
    """The program does not fit the running group: another topology, `task_assignor` or version.

    Also if workers with a fixed assignment run next to a group.

    Next step:
        Run the same program and settings everywhere. For a new topology or kind of assignment,
        stop all workers first.

    >>> raise IncompatibleMemberError("task_assignor='spread': the group runs 'sticky'; use the same on all members")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.IncompatibleMemberError: task_assignor='spread': the group runs 'sticky'; use the same on all members
    """
