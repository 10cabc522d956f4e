"""Reader of a group's two control topics: one consumer and thread each, one queue.

The state topic is read committed. The inbox is not: a transaction opened in it must not block the
group (H3).
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
from tidewheel.tasks.kafka.ports import OffsetOutOfRangeError
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_POLL_RECORDS: Final = 10_000
#: Seconds per poll; closing waits for one poll.
_WAIT_S: Final = 0.2
#: Most arrivals in the queue; when it is full, the reading threads wait.
_AHEAD: Final = 16


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """Result of reading one control topic: records and position, or a failure.

    `position` is the next offset, past markers and aborted transactions. After a `failure` the
    thread pauses until `take` has received it.
    """

    partition: TopicPartition
    runs: tuple[SourceRecords, ...] = ()
    position: int = -1
    failure: Exception | None = None


class ControlTopicsReader:
    """Reader of the group's state topic and inbox, a thread each; one thread calls `take`.

    Args:
        inbox_end: Returns the offset to continue at if unread inbox records were deleted, which
            members send again. Called in the thread that reads the inbox.
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

    def receive(self, timeout_s: float) -> list[Arrival]:
        """Return all arrivals since the last call; wait for the first one, at most `timeout_s`.

        Raises:
            StreamsError: A topic could not be read; its thread tries again.
        """
        arrivals: list[Arrival] = []
        failure, self._failure = self._failure, None
        with contextlib.suppress(queue.Empty):
            while failure is None:
                arrival = self._arrivals.get(timeout=0.0 if arrivals else timeout_s)
                failure = arrival.failure
                if failure is None:
                    arrivals.append(arrival)
                else:
                    self._follows[arrival.partition].resume()
        if failure is not None and not arrivals:
            raise failure
        self._failure = failure
        return arrivals

    def close(self) -> None:
        for follow in self._follows.values():
            follow.stop()
        for follow in self._follows.values():
            follow.join()


class _Follow(threading.Thread):
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
        self._is_lost = False
        self._stopping = threading.Event()
        self._may_resume = threading.Event()
        # Without the topic's metadata, reading would begin half a second later.
        reader.prepare([partition.topic])
        reader.assign({partition: offset})
        self.start()

    def resume(self) -> None:
        self._may_resume.set()

    def stop(self) -> None:
        self._stopping.set()
        self._may_resume.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._read()
            except Exception as failure:  # noqa: BLE001 - raised by `receive`
                self._may_resume.clear()
                self._put(Arrival(partition=self._partition, failure=failure))
                if not self._stopping.is_set():
                    self._may_resume.wait()
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
