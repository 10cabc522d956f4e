"""Reader of any topic for `tidewheel consume`, without a group."""

from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.consumer import AssignedConsumer


class KafkaTopicReader(AssignedConsumer):
    noun = "topic"
    next_step = "the records were deleted meanwhile, or the topic was created again: read it again"

    def __init__(self, settings: ClientSettings, *, committed_only: bool) -> None:
        isolation = "read_committed" if committed_only else "read_uncommitted"
        super().__init__(settings.source() | {"isolation.level": isolation})
