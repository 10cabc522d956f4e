"""Every exception Tidewheel raises on purpose, in one tree under `StreamsError`.

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
    ├── MissingOutputTopicError    a topic that is written to does not exist
    ├── InternalTopicError         an internal topic has another number of partitions than is needed now
    ├── CopartitioningError        topics whose keys come together have different numbers of partitions
    ├── RecordFailedError          a record's exception handler said "fail"
    ├── ApplicationShutdownError   an uncaught exception handler has ended the whole application
    └── IncompatibleMemberError    this program can't join the group it was started for

Messages name the topic, partition, offset, store or option concerned, and the next step. They never hold a
secret or a whole record. Errors of stores and tasks are defined where they are raised, because those packages
never import this one.
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
    "StateStoreError",
    "StoreCorruptedError",
    "StoreLockedError",
    "StoredRowError",
    "StreamsError",
    "TaskCorruptedError",
    "TopologyError",
]


class TopologyError(StreamsError):
    """A topology can't be built: names the node, the user's line that made it, and what to change.

    >>> raise TopologyError("filter (app.py:12): the predicate takes three parameters; give it one or two")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.TopologyError: filter (app.py:12): the predicate takes three parameters; give it one or two
    """


class ConfigError(StreamsError):
    """A setting is unknown or bad: names the option, the value, where it came from, and the next step.

    >>> raise ConfigError("heartbeat_interval_ms=10 (keyword): must be at least 50; use 500, the default")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.ConfigError: heartbeat_interval_ms=10 (keyword): must be at least 50; use 500, the default
    """


class ApplicationShutdownError(StreamsError):
    """An uncaught exception handler, here or at another member, answered "shutdown_application"; names the error it was for.

    >>> raise ApplicationShutdownError("member a has ended the whole application after ValueError: no such city")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.ApplicationShutdownError: member a has ended the whole application after ValueError: no such city
    """


class IncompatibleMemberError(StreamsError):
    """This program's topology, settings or version do not fit the running group; names what differs.

    >>> raise IncompatibleMemberError("task_assignor='spread': the group runs 'sticky'; use the same on all members")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.IncompatibleMemberError: task_assignor='spread': the group runs 'sticky'; use the same on all members
    """
