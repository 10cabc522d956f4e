"""Where a task begins to read, from what is committed and what the log still has. Pure."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from rebalance.model import TopicPartition
from state_stores.errors import StreamsError
from tasks.parallel.progress_vector import Progress
from tasks.ports import CommittedOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """Where one input partition begins: the offset, and the stream time known there (-1 for none)."""

    offset: int
    partition_time_ms: int = -1
    #: What the last commit said, or None if nothing (of ours) is committed.
    progress: Progress | None = None


def start_position(
    partition: TopicPartition,
    *,
    committed: CommittedOffset | None,
    log_start: int,
    log_end: int,
    topic_id: bytes,
    reset: str,
) -> StartPosition:
    """Return where to begin in one input partition.

    Raises `StreamsError` where going on would lose or repeat records silently: the committed offset is outside the
    log, or the topic is not the one that was committed for.
    """
    if committed is None or committed.offset < 0:
        if reset == "none":
            raise StreamsError(
                f"nothing is committed for {partition} and auto_offset_reset is none; set it to earliest or latest"
            )
        return StartPosition(offset=log_end if reset == "latest" else log_start)
    progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
    if progress is not None and progress.topic_id != topic_id:
        raise StreamsError(
            f"topic {partition.topic} was deleted and created again since offset {committed.offset} of partition "
            f"{partition.partition} was committed; run `tidewheel reset` if its new content is to be processed"
        )
    if not log_start <= committed.offset <= log_end:
        raise StreamsError(
            f"the committed offset {committed.offset} of {partition} is outside the log, which has {log_start} to "
            f"{log_end}: records were deleted before they were processed. Run `tidewheel reset` to accept the gap, or "
            "raise the topic's retention"
        )
    return StartPosition(
        offset=committed.offset,
        partition_time_ms=-1 if progress is None else progress.stream_time_ms,
        progress=progress,
    )


def foreign_transactional_ids(
    committed: Mapping[TopicPartition, CommittedOffset], known: AbstractSet[str]
) -> list[str]:
    """Return the transactional ids found in commit metadata beside the known ones: producers to fence before starting.

    Their open transactions could otherwise still commit after we began. `known` are our own id and those of live
    siblings, which have fenced their predecessors themselves.
    """
    found = (
        Progress.decode(offset.metadata, committed_offset=offset.offset)
        for offset in committed.values()
        if offset.offset >= 0
    )
    return sorted({progress.transactional_id for progress in found if progress is not None} - known)
