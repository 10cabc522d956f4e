"""What a worker asks about topics while it runs, asked once per topic and remembered."""

import threading
import time

from tidewheel.tasks.errors import MissingOutputTopicError
from tidewheel.tasks.ports import Admin, TopicDescription

_LIMIT = "max.message.bytes"

#: An answer stands for this long even for a record that seems too large.
_ASK_AGAIN_S = 1.0

#: Kafka's default of max.message.bytes, for a cluster that does not tell it.
_DEFAULT_LIMIT_BYTES = 1_048_588


class KafkaTopics:
    """Partition counts and size limits of topics. The worker's loop thread calls it, and the threads of key ranges."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        #: While the cluster is asked.
        self._lock = threading.Lock()
        self._known: dict[str, TopicDescription] = {}
        #: When a topic was asked about anew.
        self._asked_s: dict[str, float] = {}
        #: When a topic was found to be missing.
        self._missed_s: dict[str, float] = {}

    def partition_count(self, topic: str) -> int:
        """Return the partition count; raises `MissingOutputTopicError` naming a topic that does not exist."""
        return self._describe(topic).partitions

    def message_bytes_max(self, topic: str) -> int:
        """Return the largest record batch the topic accepts (bytes)."""
        return int(self._describe(topic).config.get(_LIMIT, _DEFAULT_LIMIT_BYTES))

    def message_bytes_max_now(self, topic: str) -> int:
        """Return the same, asked anew unless it was just asked."""
        now_s = time.monotonic()
        if now_s - self._asked_s.get(topic, -_ASK_AGAIN_S) >= _ASK_AGAIN_S:
            self._known.pop(topic, None)
            self._asked_s[topic] = now_s
        return self.message_bytes_max(topic)

    def _describe(self, topic: str) -> TopicDescription:
        known = self._known.get(topic)
        if known is not None:
            return known
        with self._lock:
            return self._known.get(topic) or self._ask(topic)

    def _ask(self, topic: str) -> TopicDescription:
        now_s = time.monotonic()
        # Functions that name topics may name a missing one for every record: the cluster is not asked each time.
        if now_s - self._missed_s.get(topic, -_ASK_AGAIN_S) < _ASK_AGAIN_S:
            raise _missing(topic)
        found = self._admin.describe_topics([topic], config=[_LIMIT])
        if topic not in found:
            self._missed_s[topic] = now_s
            raise _missing(topic)
        self._missed_s.pop(topic, None)
        known = self._known[topic] = found[topic]
        return known


def _missing(topic: str) -> MissingOutputTopicError:
    return MissingOutputTopicError(
        f"output topic {topic} does not exist; create it (output topics are never created by themselves)"
    )
