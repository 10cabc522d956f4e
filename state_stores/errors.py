"""Base class of user-visible errors, and errors of state stores."""

from typing import Self


class StreamsError(Exception):
    """Root of all errors Tidewheel raises on purpose.

    Also raised for errors without a class of their own: Kafka unreachable, topics of another
    shape, offsets outside the log.

    Next step:
        See the message.

    >>> issubclass(StateStoreError, StreamsError), issubclass(StreamsError, Exception)
    (True, True)
    """


class SerdeError(StreamsError):
    """A serde rejected a key or a value; base class of `SerializationError`.

    `fact` is the cause alone: the message without advice.
    """

    def __init__(self, message: str, *, fact: str | None = None) -> None:
        super().__init__(message)
        self.fact = message if fact is None else fact

    def in_store(self, store: str) -> Self:
        message = f"store {store}: {self.fact}; pass a type that the store's serdes accept, or give the store other serdes"
        return type(self)(message)


class StateStoreError(StreamsError):
    """A state store could not be opened, read or written: not writable, or too many open files.

    A full disk ends no worker.

    Next step:
        See the message. Nothing is lost: the state is restored from the changelog.

    >>> raise StateStoreError('state directory is full; free space, or move state_dir')
    Traceback (most recent call last):
    ...
    tidewheel.state_stores.errors.StateStoreError: state directory is full; free space, or move state_dir
    """


class StoreLockedError(StateStoreError):
    """Another process holds a state directory or database.

    Next step:
        Stop that process, or use another `state_dir`.

    >>> raise StoreLockedError('slot 0 is held by process 4711; stop that process')
    Traceback (most recent call last):
    ...
    tidewheel.state_stores.errors.StoreLockedError: slot 0 is held by process 4711; stop that process
    """


class DiskFullError(StateStoreError):
    """The disk of `state_dir` accepts no data; the worker tries again.

    `task_id`: the running task that failed.
    """

    task_id: str = ""


class InvalidStateStoreError(StateStoreError):
    """The store is not readable here: unknown, closed, moved away, or not open yet.

    Next step:
        Wait for RUNNING, then get the store again.

    >>> raise InvalidStateStoreError('store counts has no running task in this process')
    Traceback (most recent call last):
    ...
    tidewheel.state_stores.errors.InvalidStateStoreError: store counts has no running task in this process
    """


class QueryTimeoutError(InvalidStateStoreError):
    """A query of uncommitted rows had no answer within `interactive_query_timeout_ms`.

    The worker was in a long user call, which the message names, or in a commit.

    Next step:
        Retry, raise the setting, or read committed rows.

    >>> issubclass(QueryTimeoutError, InvalidStateStoreError)
    True
    """


class StoredRowError(StateStoreError):
    """The store's serde can't read a stored row, usually because the value class has changed.

    No record is at fault, so record exception handlers are not called. The worker ends, unless
    the uncaught exception handler replaces it.

    Next step:
        Give new fields a default, or the store a serde that reads both forms.

    >>> StoredRowError("orders", "Object missing required field `currency`").store
    'orders'
    """

    def __init__(
        self, store: str, fact: str, *, key_hash: str | None = None, advice: str | None = None
    ) -> None:
        row = "a stored row" if key_hash is None else f"the stored row of key {key_hash}"
        step = advice or (
            "it was written by another class or serde: give new fields a default, or give the store a serde that reads both "
            "forms (docs/state.md, 'When the class of a store changes')"
        )
        super().__init__(
            f"store {store}: {row} can't be read ({fact}); {step}; nothing was changed"
        )
        self.store = store
        self.fact = fact
        self.key_hash = key_hash

    def of_key(self, key_hash: str) -> "StoredRowError":
        return StoredRowError(self.store, self.fact, key_hash=key_hash)


class StoreCorruptedError(StateStoreError):
    """A database is damaged; the worker deletes the task directory and restores the task.

    Next step:
        None. Retry a query.

    >>> issubclass(StoreCorruptedError, StateStoreError)
    True
    """
