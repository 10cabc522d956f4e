"""Records on their way out, as columns of raw bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.processing.record import Headers

#: Partition number that lets the client choose by Kafka's murmur2 of the key (random for null keys).
ANY_PARTITION = -1


@dataclass(slots=True, kw_only=True)
class OutputColumns:
    """Records for one topic, in order, as the engine stages them until they are produced.

    `partitions` is one number for all records, or one per record; `ANY_PARTITION` leaves it to the client.
    `source_topic`, `source_partition` and `source_offsets` say which input each record came from (for the production
    exception handler); `source_offsets` is None for records without one. `internal` records belong to the application's
    own state and are never skipped; for a `dead_letter` that fails no other dead letter is written.
    """

    topic: str
    partitions: int | list[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    headers: Sequence[Headers] | None = None
    node: str = ""
    task_id: str = ""
    source_topic: str | None = None
    source_partition: int | None = None
    source_offsets: Sequence[int] | None = None
    internal: bool = False
    dead_letter: bool = False

    def __len__(self) -> int:
        return len(self.values)
