"""Topic properties that a worker caches."""

import threading
import time

from tidewheel.tasks.errors import MissingOutputTopicError
from tidewheel.tasks.kafka.ports import Admin, TopicDescription

_LIMIT = "max.message.bytes"

#: Shortest interval between two requests for one topic.
_ASK_AGAIN_S = 1.0

#: Kafka's default of max.message.bytes, for clusters that don't report it.
_DEFAULT_LIMIT_BYTES = 1_048_588


class KafkaTopics:
    """Partition counts and size limits of topics; thread-safe."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._lock = threading.Lock()
        self._descriptions: dict[str, TopicDescription] = {}
        self._asked_s: dict[str, float] = {}
        self._missed_s: dict[str, float] = {}

    def partition_count(self, topic: str) -> int:
        return self._describe(topic).partitions

    def message_bytes_max(self, topic: str) -> int:
        return int(self._describe(topic).config.get(_LIMIT, _DEFAULT_LIMIT_BYTES))

    def message_bytes_max_now(self, topic: str) -> int:
        now_s = time.monotonic()
        if now_s - self._asked_s.get(topic, -_ASK_AGAIN_S) >= _ASK_AGAIN_S:
            self._descriptions.pop(topic, None)
            self._asked_s[topic] = now_s
        return self.message_bytes_max(topic)

    def _describe(self, topic: str) -> TopicDescription:
        description = self._descriptions.get(topic)
        if description is not None:
            return description
        with self._lock:
            return self._descriptions.get(topic) or self._ask(topic)

    def _ask(self, topic: str) -> TopicDescription:
        now_s = time.monotonic()
        # Not asked again now: a user function may return a missing topic for every record.
        if now_s - self._missed_s.get(topic, -_ASK_AGAIN_S) < _ASK_AGAIN_S:
            raise _missing(topic)
        descriptions = self._admin.describe_topics([topic], config=[_LIMIT])
        if topic not in descriptions:
            self._missed_s[topic] = now_s
            raise _missing(topic)
        self._missed_s.pop(topic, None)
        description = self._descriptions[topic] = descriptions[topic]
        return description


def _missing(topic: str) -> MissingOutputTopicError:
    return MissingOutputTopicError(
        f"output topic {topic} does not exist; create it: tidewheel topics create {topic} --partitions N"
    )
