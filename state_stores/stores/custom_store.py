"""What a store of the user's own is: the class it derives from, and what its task offers it. Nothing here opens one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple


class ChangelogRecord(NamedTuple):
    """One change as the changelog of a store has it; a `value` of None deletes the key.

    >>> ChangelogRecord(b"k", None, 1_000).value is None
    True
    """

    key: bytes
    value: bytes | None
    timestamp: int


class StateStoreContext(ABC):
    """What a `StateStore` gets in `init`.

    >>> class Flags(StateStore):
    ...     def init(self, context: StateStoreContext) -> None:
    ...         super().init(context)
    ...         self.raised: set[bytes] = set()
    ...     def restore(self, records: Sequence[ChangelogRecord]) -> None:
    ...         self.raised.update(record.key for record in records)
    >>> Flags.manages_offsets
    False
    """

    @property
    @abstractmethod
    def store_name(self) -> str:
        """Return the store's name."""

    @property
    @abstractmethod
    def task_id(self) -> str:
        """Return the id of the task whose store it is: each task has an object of its own."""

    @property
    @abstractmethod
    def state_dir(self) -> Path:
        """Return a directory for this store alone, made when it is first asked for.

        It is deleted with all that is in it whenever the store is to begin empty; unless the store manages offsets, that
        is each time it is opened.
        """

    @abstractmethod
    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None = None) -> None:
        """Have a change written to the changelog with the next commit; of several changes of a key, the last one.

        Args:
            key: What the change is found by: `restore` gets the last change of each key, and perhaps earlier ones.
            value: What `restore` needs to make it again; None deletes the key.
            timestamp: That of the changelog's record (ms); that of the record being processed if not given.

        Raises:
            StateStoreError: No record is processed, nor a callback called: in `init`, `restore`, `commit` and `close`.
        """


class StateStore(ABC):
    """A store of your own: any object that keeps state for processors and can be made again from its changelog.

    Derive from it and add the methods that processors call. Each of those that change the state first says so with
    `self.context.log_change(key, value)`. What was logged becomes true together with the outputs and offsets of the records
    that caused it, or not at all. `Stores.custom` takes the class.

    Attributes:
        manages_offsets: Set it on a class whose data outlive the object: it then keeps them in `context.state_dir` together
            with what `commit` is given, returns that in `committed_offset`, and is restored from there on. Without it a
            store begins empty each time it is opened, and is restored from the beginning of its changelog.
        context: What `init` was given.

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
        """Begin: empty, or with what was committed last if the store manages offsets."""
        self.context = context

    @abstractmethod
    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        """Make changes of the changelog again, in its order; some may have been made before.

        It is called before the first record is processed, and by a copy that follows a task, all the time.
        """

    def commit(self, offsets: Mapping[tuple[str, int], int]) -> None:  # noqa: B027 - may be left as it is
        """Note that all changes up to now are committed, and nothing else is.

        It is called after Kafka has committed, and with what was restored. A store that manages offsets makes its changes
        and these offsets durable here, in one step that happens as a whole or not at all, and never before.

        Args:
            offsets: The offset that the store has reached in its changelog, by topic and partition; they replace those of
                before. There are none without a changelog and in the test driver.
        """

    def committed_offset(self, topic: str, partition: int) -> int | None:  # noqa: ARG002 - for those who override it
        """Return the offset that the last `commit` was given, of whatever life; None if there is none. Asked after `init`."""
        return None

    def close(self) -> None:  # noqa: B027 - may be left as it is
        """End; changes that were not committed are forgotten, so nothing is to be saved here."""
