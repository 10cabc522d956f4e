"""Pool of clients that read committed offsets: a new connection would delay moved tasks."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.client.client_log import ClientLog, error_of, make_client
from tidewheel.streams.kafka.client.codes import READ_FORBIDDEN, TIMED_OUT
from tidewheel.streams.kafka.client.settings import ClientSettings

#: The most recently used readers are kept: 2 for an application, and 2 for each shard. Each has four
#: threads and two connections.
_MOST_READERS: Final = 16


class OffsetsReaders:
    def __init__(self, settings: ClientSettings, log: ClientLog) -> None:
        self._settings = settings
        self._log = log
        self._has_logged_in = False
        self._lock = threading.Lock()
        self._is_closed = False
        #: By group and stability, the last used one last.
        self._readers: dict[tuple[str, bool], Any] = {}
        #: Borrowers per reader. Closing a client in use crashes: the last borrower closes it.
        self._lent: Counter[Any] = Counter()

    @contextlib.contextmanager
    def lent(self, group_id: str, *, stable: bool) -> Iterator[Any]:
        """Lend a reader of the group's offsets; raise StreamsError once closed.

        A reader that timed out is dropped.
        """
        which = (group_id, stable)
        reader = self._borrow(which)
        try:
            yield reader
            self._has_logged_in = True
        except KafkaException as exception:
            if error_of(exception).code() == TIMED_OUT:
                self._forget(which, reader)
                _raise_refusal(reader)
                if not self._has_logged_in:
                    raise KafkaException(self._log.cause_of(error_of(exception))) from exception
            raise
        finally:
            reader.poll(0)  # Delivers log lines, which would otherwise pile up.
            if self._return(which, reader):
                reader.close()

    def _borrow(self, which: tuple[str, bool]) -> Any:
        group_id, stable = which
        with self._lock:
            if self._is_closed:
                raise StreamsError(f"group {group_id}: not asked, because the client was closed")
            reader = self._readers.pop(which, None)
            if reader is None:
                config = self._settings.offsets(group_id, stable=stable)
                reader = make_client(Consumer, "consumer", config, self._log)
            self._readers[which] = reader
            self._lent[reader] += 1
            evicted = [self._readers.pop(oldest) for oldest in [*self._readers][:-_MOST_READERS]]
            idle = self._idle(evicted)
        for unused in idle:
            unused.close()
        return reader

    def _idle(self, readers: Iterable[Any]) -> list[Any]:
        return [reader for reader in readers if reader not in self._lent]

    def _forget(self, which: tuple[str, bool], reader: Any) -> None:
        with self._lock:
            if self._readers.get(which) is reader:
                del self._readers[which]

    def _return(self, which: tuple[str, bool], reader: Any) -> bool:
        with self._lock:
            self._lent[reader] -= 1
            if self._lent[reader]:
                return False
            del self._lent[reader]
            return self._readers.get(which) is not reader

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            readers, self._readers = self._readers, {}
            idle = self._idle(readers.values())
        for reader in idle:
            reader.close()


def own_partition(application_id: str) -> KafkaPartition:
    return KafkaPartition(f"{application_id}-group-state", 0)


def _raise_refusal(reader: Any) -> None:
    message = reader.poll(0)
    error = None if message is None else message.error()
    if error is not None and error.code() in READ_FORBIDDEN:
        raise KafkaException(error)
