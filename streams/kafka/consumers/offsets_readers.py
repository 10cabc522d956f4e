"""The clients that read a group's committed offsets: kept, because a task that moves waits for the answer."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaException

from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.client.client_log import ClientLog, error_of, make_client
from tidewheel.streams.kafka.client.codes import TIMED_OUT
from tidewheel.streams.kafka.client.settings import ClientSettings


class OffsetsReaders:
    """Consumers that are lent to whoever asks, by group and whether they wait for undecided commits. Any thread calls it."""

    def __init__(self, settings: ClientSettings, log: ClientLog) -> None:
        self._settings = settings
        self._log = log
        self._lock = threading.Lock()
        self._is_closed = False
        self._kept: dict[tuple[str, bool], Any] = {}
        #: How many are asking each of them: a client that is closed while it is asked follows a dead pointer.
        self._lent: Counter[Any] = Counter()

    @contextlib.contextmanager
    def lent(self, group_id: str, *, stable: bool) -> Iterator[Any]:
        """Lend a reader; raises StreamsError once closed.

        One that got no answer in time is not asked again: it may hold on to a connection that nobody serves.
        """
        which = (group_id, stable)
        reader = self._take(which)
        try:
            yield reader
        except KafkaException as exception:
            if error_of(exception).code() == TIMED_OUT:
                self._forget(which, reader)
            raise
        finally:
            reader.poll(0)  # takes its log lines, which would else pile up
            if self._give_back(which, reader):
                reader.close()

    def _take(self, which: tuple[str, bool]) -> Any:
        group_id, stable = which
        with self._lock:
            if self._is_closed:
                raise StreamsError(f"group {group_id}: not asked, because the client was closed")
            reader = self._kept.get(which)
            if reader is None:
                config = self._settings.offsets(group_id, stable=stable)
                reader = self._kept[which] = make_client(Consumer, "consumer", config, self._log)
            self._lent[reader] += 1
            return reader

    def _forget(self, which: tuple[str, bool], reader: Any) -> None:
        with self._lock:
            if self._kept.get(which) is reader:
                del self._kept[which]

    def _give_back(self, which: tuple[str, bool], reader: Any) -> bool:
        """Take a reader back; return whether it is to be closed: nobody has it, and nobody will be lent it again."""
        with self._lock:
            self._lent[reader] -= 1
            if self._lent[reader]:
                return False
            del self._lent[reader]
            return self._kept.get(which) is not reader

    def close(self) -> None:
        """Close those that nobody is asking; the others close when they have answered. Idempotent."""
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, {}
            idle = [each for each in kept.values() if each not in self._lent]
        for reader in idle:
            reader.close()
