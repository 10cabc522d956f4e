"""Liveness of workers with a fixed assignment, shown by membership in `<application id>:fixed`.

Resets and workers that join a group of the same name (`streams/worker/placement_conflict.py`)
must know of live workers. Correctness does not depend on it. A member's client id is its
producer's transactional id.
"""

import logging
import threading
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError

from tidewheel.streams.kafka.client.advice import next_step
from tidewheel.streams.kafka.client.client_log import ClientLog, make_client
from tidewheel.streams.kafka.client.codes import is_transient
from tidewheel.streams.kafka.client.settings import Config

#: Seconds between polls for callbacks; the client's own thread sends heartbeats.
_POLL_S: Final = 0.5
_LEAVE_S: Final = 2.0
#: Seconds for a pending assignment to arrive before `close`.
_SETTLE_S: Final = 0.1


class FixedClaim:
    """Consumer that joins the group `<application id>:fixed` from construction to `close`.

    It reads nothing: its membership shows that the worker is alive. Members must subscribe, so
    `topic` must exist.
    """

    def __init__(self, config: Config, topic: str) -> None:
        self._log = ClientLog(config["client.id"], with_debug="debug" in config)
        self._client: Any = make_client(Consumer, "consumer", config, self._log)
        self._topic = topic
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._main, name="tidewheel-claim", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join(_LEAVE_S)

    def _main(self) -> None:
        self._client.subscribe([self._topic], on_assign=_read_nothing)
        while not self._ending.is_set():
            message = self._client.poll(0)
            if message is not None and message.error() is not None:
                self._log_error(message.error())
            self._ending.wait(_POLL_S)
        # With a pending assignment, `close` would wait forever in its callback and hold the GIL
        # (librdkafka issue 4884).
        self._client.unsubscribe()
        self._client.poll(_SETTLE_S)
        self._client.close()

    def _log_error(self, error: KafkaError) -> None:
        if not is_transient(error):
            self._log.forward(
                logging.WARNING,
                error.name(),
                f"`tidewheel reset` and groups won't see that this worker lives: {error.str()}; {next_step(error)}",
            )


def _read_nothing(consumer: Any, _partitions: object) -> None:
    consumer.assign([])
