"""Reads the two control topics of a group at once: a consumer and a thread for each, their news in one queue.

The state topic is read committed, the inbox is not: what members say is in no transaction, and whoever opens one in the
inbox must not be able to blind the group (hole H3). One consumer can't do both.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.group_reader import KafkaGroupReader
from tidewheel.tasks.ports import OffsetOutOfRangeError
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_POLL_RECORDS: Final = 10_000
#: How long a thread waits for records, and so how long closing takes.
_WAIT_S: Final = 0.2
#: How many arrivals may lie about. Then the client's own limits hold.
_AHEAD: Final = 16


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one control topic: records, or a position past what can't be seen, or a failure.

    Attributes:
        partition: Of which topic.
        runs: The records, in order.
        position: The next offset, past markers and aborted transactions.
        failure: Why it can't be read now; the topic is read again once this was taken.
    """

    partition: TopicPartition
    runs: tuple[SourceRecords, ...] = ()
    position: int = -1
    failure: Exception | None = None


class ControlTopicsReader:
    """Both topics, each from an offset on. One thread calls it.

    Args:
        settings: What clients are made from.
        state: The state topic, and where to begin.
        inbox: The inbox, and where to begin.
        inbox_end: Where to go on if records of the inbox were deleted unread: they were announcements, and whatever
            counts is said again. Called by the inbox's thread.
    """

    def __init__(
        self,
        settings: ClientSettings,
        state: tuple[TopicPartition, int],
        inbox: tuple[TopicPartition, int],
        inbox_end: Callable[[], int],
    ) -> None:
        self._arrivals: queue.Queue[Arrival] = queue.Queue(_AHEAD)
        committed = KafkaGroupReader(settings, committed_only=True, with_headers=True)
        everything = KafkaGroupReader(settings, committed_only=False)
        self._follows = {
            state[0]: _Follow(committed, *state, self._arrivals),
            inbox[0]: _Follow(everything, *inbox, self._arrivals, inbox_end),
        }
        self._failure: Exception | None = None

    def take(self, timeout_s: float) -> list[Arrival]:
        """Return what has arrived, or nothing after a time.

        Raises:
            StreamsError: A topic can't be read now; everything before it was taken. It is tried again from here on.
        """
        taken: list[Arrival] = []
        failure, self._failure = self._failure, None
        with contextlib.suppress(queue.Empty):
            while failure is None:
                arrival = self._arrivals.get(timeout=0.0 if taken else timeout_s)
                failure = arrival.failure
                if failure is None:
                    taken.append(arrival)
                else:
                    self._follows[arrival.partition].go_on()
        if failure is not None and not taken:
            raise failure
        self._failure = failure
        return taken

    def close(self) -> None:
        """Let go of both clients."""
        for each in self._follows.values():
            each.stop()
        for each in self._follows.values():
            each.join()


class _Follow(threading.Thread):
    """Reads one topic until it is stopped, and closes its reader then."""

    def __init__(
        self,
        reader: KafkaGroupReader,
        partition: TopicPartition,
        offset: int,
        arrivals: "queue.Queue[Arrival]",
        end: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(name=f"tidewheel-{partition.topic}", daemon=True)
        self._reader = reader
        self._partition = partition
        self._position = offset
        self._arrivals = arrivals
        self._end = end
        #: Whether the records to be read next are gone.
        self._is_lost = False
        self._stopping = threading.Event()
        self._may_go_on = threading.Event()
        # A topic that the client does not know yet is read half a second later.
        reader.prepare([partition.topic])
        reader.assign({partition: offset})
        self.start()

    def go_on(self) -> None:
        """Read again: the failure was taken."""
        self._may_go_on.set()

    def stop(self) -> None:
        """Have the thread end soon."""
        self._stopping.set()
        self._may_go_on.set()

    def run(self) -> None:
        """Read and tell."""
        while not self._stopping.is_set():
            try:
                self._read()
            except Exception as failure:  # noqa: BLE001 - raised where it is taken
                self._may_go_on.clear()
                self._put(Arrival(partition=self._partition, failure=failure))
                if not self._stopping.is_set():
                    self._may_go_on.wait()
        self._reader.close()

    def _read(self) -> None:
        if self._is_lost and self._end is not None:
            self._reader.assign({self._partition: self._end()})
            self._is_lost = False
        try:
            runs = self._reader.poll(_POLL_RECORDS, _WAIT_S)
        except OffsetOutOfRangeError:
            if self._end is None:
                raise
            self._is_lost = True
            return
        position = self._reader.positions()[self._partition]
        if runs or position != self._position:
            self._position = position
            self._put(Arrival(partition=self._partition, runs=tuple(runs), position=position))

    def _put(self, arrival: Arrival) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(queue.Full):
                self._arrivals.put(arrival, timeout=_WAIT_S)
                return
