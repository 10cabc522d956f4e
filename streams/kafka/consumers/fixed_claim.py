"""How a worker with a fixed assignment lets the cluster know that it lives: as a member of a consumer group of its own.

No result rests on it: tasks are placed by their users, producers fence each other. But a reset has to know whether
somebody still runs, on whichever machine, and so has a worker that would join a group of the same name
(`streams/worker/placement_conflict.py`); and the brokers already know how to notice who is gone. The group is `<application id>:fixed` (no application has a colon in its name); each member's client id is the transactional id of its
producer. It reads nothing and commits nothing.
"""

import logging
import threading
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError

from tidewheel.streams.kafka.client.advice import next_step
from tidewheel.streams.kafka.client.client_log import ClientLog, make_client
from tidewheel.streams.kafka.client.codes import is_transient
from tidewheel.streams.kafka.client.settings import Config

#: The callbacks of the client are served this often; it sends its heartbeats by itself.
_LOOK_S: Final = 0.5
#: How long leaving the group is waited for; brokers that hear nothing strike the member off by themselves.
_LEAVE_S: Final = 2.0
#: And before that, for what is on its way to this member.
_SETTLE_S: Final = 0.1


class FixedClaim:
    """Begins when it is made, ends with `close`. Errors are logged by the client and harm nobody.

    Args:
        config: Settings of the consumer (`ClientSettings.fixed_claim`).
        topic: One that exists; a member has to be interested in something.
    """

    def __init__(self, config: Config, topic: str) -> None:
        self._log = ClientLog(config["client.id"], with_debug="debug" in config)
        self._client: Any = make_client(Consumer, "consumer", config, self._log)
        self._topic = topic
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._main, name="tidewheel-claim", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the group; idempotent."""
        self._ending.set()
        self._thread.join(_LEAVE_S)

    def _main(self) -> None:
        self._client.subscribe([self._topic], on_assign=_read_nothing)
        while not self._ending.is_set():
            message = self._client.poll(0)
            if message is not None and message.error() is not None:
                self._tell(message.error())
            self._ending.wait(_LOOK_S)
        # What the group gave to this member and is not taken yet must not be met by `close`: the client has it answered by nobody
        # then, and the callback waits for that for ever, with the interpreter in its hands (librdkafka issue 4884).
        self._client.unsubscribe()
        self._client.poll(_SETTLE_S)
        self._client.close()

    def _tell(self, error: KafkaError) -> None:
        if not is_transient(error):
            self._log.say(
                logging.WARNING,
                error.name(),
                f"`tidewheel reset` and groups won't see that this worker lives: {error.str()}; {next_step(error)}",
            )


def _read_nothing(consumer: Any, _partitions: object) -> None:
    """Take none of the partitions that the group gives to this member."""
    consumer.assign([])
