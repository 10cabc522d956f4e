"""Reads a control topic of a group by position: nothing is joined, nothing is committed."""

from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.consumer import AssignedConsumer


class KafkaGroupReader(AssignedConsumer):
    """One control topic by position. One thread calls it.

    Args:
        settings: What clients are made from.
        committed_only: True for the state topic. The inbox has no transactions, and must not stand still because
            somebody opens one in it (hole H3).
        with_headers: Whether records come with their headers.
    """

    noun = "group topic"
    next_step = "the topic was deleted or made anew: see `tidewheel status`"

    def __init__(
        self, settings: ClientSettings, *, committed_only: bool, with_headers: bool = False
    ) -> None:
        self.with_headers = with_headers
        isolation = "read_committed" if committed_only else "read_uncommitted"
        super().__init__(settings.control_topics() | {"isolation.level": isolation})
