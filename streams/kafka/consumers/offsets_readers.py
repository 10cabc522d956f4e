"""Pool of clients that read committed offsets: a new connection would delay moved tasks."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.client.client_log import ClientLog, error_of, make_client
from tidewheel.streams.kafka.client.codes import READ_FORBIDDEN, TIMED_OUT
from tidewheel.streams.kafka.client.settings import ClientSettings


class OffsetsReaders:
    def __init__(self, settings: ClientSettings, log: ClientLog) -> None:
        self._settings = settings
        self._log = log
        self._has_logged_in = False
        self._lock = threading.Lock()
        self._is_closed = False
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
            reader = self._readers.get(which)
            if reader is None:
                config = self._settings.offsets(group_id, stable=stable)
                reader = self._readers[which] = make_client(Consumer, "consumer", config, self._log)
            self._lent[reader] += 1
            return reader

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
            idle = [reader for reader in readers.values() if reader not in self._lent]
        for reader in idle:
            reader.close()


def own_partition(application_id: str) -> KafkaPartition:
    return KafkaPartition(f"{application_id}-group-state", 0)


def _raise_refusal(reader: Any) -> None:
    message = reader.poll(0)
    error = None if message is None else message.error()
    if error is not None and error.code() in READ_FORBIDDEN:
        raise KafkaException(error)
