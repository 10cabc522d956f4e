"""Base class of users' stores, and their context."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple


class ChangelogRecord(NamedTuple):
    """One change in a store's changelog; a `value` of None deletes the key.

    >>> ChangelogRecord(b"k", None, 1_000).value is None
    True
    """

    key: bytes
    value: bytes | None
    timestamp: int


class StateStoreContext(ABC):
    """Names, directory and changelog of a `StateStore`, which gets it in `init`.

    >>> class Flags(StateStore):
    ...     def init(self, context: StateStoreContext) -> None:
    ...         super().init(context)
    ...         self.raised: set[bytes] = set()
    ...     def raise_flag(self, flag: bytes) -> None:
    ...         self.context.log_change(flag, b"")
    ...         self.raised.add(flag)
    ...     def restore(self, records: Sequence[ChangelogRecord]) -> None:
    ...         self.raised.update(record.key for record in records)
    """

    @property
    @abstractmethod
    def store_name(self) -> str: ...

    @property
    @abstractmethod
    def task_id(self) -> str:
        """Return the id of the store's task. Each task has its own `StateStore` object and data."""

    @property
    @abstractmethod
    def state_dir(self) -> Path:
        """Return a directory for this store alone, created on first use.

        Tidewheel deletes it when the store opens. If the store manages offsets, it does so only
        before a restore from the changelog's beginning.
        """

    @abstractmethod
    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None = None) -> None:
        """Log a change for the next commit; only the last change of each key is written.

        Args:
            key: Key of the change; `restore` gets each key's last change, perhaps earlier ones too.
            value: Bytes from which `restore` repeats the change; None deletes the key.
            timestamp: That of the changelog record (ms); None: the current record's.

        Raises:
            StateStoreError: Called outside of processing: in `init`, `restore`, `commit` or
                `close`.
        """


class StateStore(ABC):
    """A store of your own: any object with state that can be rebuilt from its changelog.

    Derive from it and add methods for processors. Each method that changes state first calls
    `self.context.log_change(key, value)`. Logged changes are committed atomically with the outputs
    and offsets of their records. Pass the class to `Stores.custom`.

    Attributes:
        manages_offsets: Set it if the data outlives the object. The store then keeps its data in
            `context.state_dir` with the offsets of `commit`, and returns them in
            `committed_offset`; the restore starts there. Without it, the store starts empty at each
            opening and is restored from the changelog's beginning.
        context: Context from `init`.

    >>> from tidewheel import Processor, Stores, StreamsBuilder
    >>> from tidewheel.testing import TopologyTestDriver
    >>> class Names(StateStore):
    ...     def init(self, context: StateStoreContext) -> None:
    ...         super().init(context)
    ...         self.names: set[str] = set()
    ...     def add(self, name: str) -> None:
    ...         self.context.log_change(name.encode(), b"")
    ...         self.names.add(name)
    ...     def restore(self, records: Sequence[ChangelogRecord]) -> None:
    ...         self.names.update(record.key.decode() for record in records)
    >>> class Note(Processor[str, str, None, None]):
    ...     def process(self, record):
    ...         self.context.get_state_store("names").add(record.value)
    >>> builder = StreamsBuilder().add_state_store(Stores.custom("names", Names))
    >>> _ = builder.stream("in", key_serde=str, value_serde=str).process(Note, stores=["names"])
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.create_input_topic("in", key_serde=str, value_serde=str).pipe_input("k", "ann")
    ...     driver.get_state_store("names").names
    {'ann'}
    """

    manages_offsets: ClassVar[bool] = False
    context: StateStoreContext

    def init(self, context: StateStoreContext) -> None:
        """Start empty, or with the last committed data if the store manages offsets."""
        self.context = context

    @abstractmethod
    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        """Apply changelog records in order; some may have been applied before.

        It is called before the first record is processed; in a copy of the task, continuously.
        """

    def commit(self, offsets: Mapping[tuple[str, int], int]) -> None:  # noqa: B027 - may be left as it is
        """Handle a completed commit: all changes up to now, and only these, are committed.

        It is called after Kafka's commit, and after a restore. A store that manages offsets makes
        its changes and these offsets durable here in one atomic step, never before.

        Args:
            offsets: Next changelog offset by topic and partition; it replaces the earlier one.
            Empty without a changelog and in the test driver.
        """

    def committed_offset(self, topic: str, partition: int) -> int | None:  # noqa: ARG002 - for stores that override it
        """Return the offset of the last `commit`, also of an earlier process; None without one."""
        return None

    def close(self) -> None:  # noqa: B027 - may be left as it is
        """Close the store. Uncommitted changes are dropped, so save nothing here."""
