"""The one reader of changelogs that all restores of a worker share, and whose records are whose. No thread of its own."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.ports import ChangelogReader
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.reading_turns import ReadingTurns
from tidewheel.tasks.restore.restoring_task import Charge
from tidewheel.tasks.restore.store_restore import StoreRestore

#: How long a poll waits for records: an order that comes meanwhile waits as long.
_POLL_S: Final = 0.01


class SharedReader:
    """Reads what the charges need, in turns. The client is made when it is needed first, and again after `rest`.

    Args:
        make: Makes the client.
        turns: Whose turn it is.
    """

    def __init__(self, make: Callable[[], ChangelogReader], turns: ReadingTurns) -> None:
        self._make = make
        self._turns = turns
        self._reader: ChangelogReader | None = None
        self._charges: dict[TopicPartition, Charge] = {}

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is read."""
        return not self._charges

    def charge_of(self, partition: TopicPartition) -> Charge | None:
        """Return for whom a partition is read, if it is."""
        return self._charges.get(partition)

    def charges(self) -> list[Charge]:
        """Return for whom anything is read, each once."""
        return list(dict.fromkeys(self._charges.values()))

    def entries(self) -> list[StoreRestore]:
        """Return what is read."""
        return [charge.entries[partition] for partition, charge in self._charges.items()]

    def start(self, charge: Charge) -> None:
        """Read what the stores of a task need, from where they stand; what is read already goes on."""
        wanted = {
            partition: entry.position
            for partition, entry in charge.entries.items()
            if not entry.is_done and not entry.elsewhere and partition not in self._charges
        }
        if not wanted:
            return
        if self._reader is None:
            self._reader = self._make()
            self._reader.assign({})
        self._reader.add(wanted)
        self._charges.update(dict.fromkeys(wanted, charge))
        self._choose_headers(self._reader)

    def stop(self, charge: Charge, partitions: Iterable[TopicPartition]) -> None:
        """Read these no more, as far as they are read for this task."""
        mine = [each for each in partitions if self._charges.get(each) is charge]
        for partition in mine:
            del self._charges[partition]
        self._turns.forget(mine)
        if mine and self._reader is not None:
            self._reader.remove(mine)
            self._choose_headers(self._reader)

    def _choose_headers(self, reader: ChangelogReader) -> None:
        reader.with_headers = any(entry.needs_headers for entry in self.entries())

    def poll(self, most: int, *, busy: bool) -> list[SourceRecords]:
        """Return what has arrived, of at most so many records; `busy`: tasks run. Raises as the port does."""
        reader = self._reader
        assert reader is not None, "something is read"
        return reader.poll(self._turns.records(most, busy=busy), _POLL_S)

    def share(self) -> None:
        """Let those read whose turn it is now."""
        assert self._reader is not None, "something is read"
        self._turns.share(self._reader, self.entries())

    def leave_room(self, records: int, took_s: float) -> None:
        """Leave the interpreter to tasks that run, after records that took so long."""
        self._turns.leave_room(records, took_s)

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the reader's positions."""
        return {} if self._reader is None else self._reader.positions()

    def ends(self) -> Mapping[TopicPartition, int]:
        """Return the ends of the logs that the reader knows."""
        return {} if self._reader is None else self._reader.end_offsets()

    def stable(self) -> Mapping[TopicPartition, int]:
        """Return the ends of the decided records that the reader knows."""
        return {} if self._reader is None else self._reader.stable_offsets()

    def rest(self) -> None:
        """Close the client; idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
