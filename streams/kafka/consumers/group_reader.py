"""Reader of a group's control topic by position, without joining or committing."""

from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.consumer import AssignedConsumer


class KafkaGroupReader(AssignedConsumer):
    """Reader of one control topic, for one thread.

    `committed_only` is True for the state topic and False for the inbox, where an open transaction
    must not block readers (H3).
    """

    noun = "group topic"
    next_step = "the topic was deleted or created again: see `tidewheel status`"

    def __init__(
        self, settings: ClientSettings, *, committed_only: bool, with_headers: bool = False
    ) -> None:
        self.with_headers = with_headers
        isolation = "read_committed" if committed_only else "read_uncommitted"
        super().__init__(settings.control_topics() | {"isolation.level": isolation})
