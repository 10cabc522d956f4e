"""Checks before outputs are written to sink topics. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from tidewheel.streams.errors import StreamsError
from tidewheel.tasks.kafka.ports import NewTopic, TopicDescription

_POLICY: Final = "cleanup.policy"
_RETENTION: Final = "retention.ms"
_TIMESTAMPS: Final = "message.timestamp.type"

#: Settings of topics that `short_retentions` reads.
RETENTION_SETTINGS: Final = (_POLICY, _RETENTION, _TIMESTAMPS)

_HOUR_MS: Final = 3_600_000


def check_retentions(short: Mapping[str, int], *, accepted: bool) -> None:
    """Raise `StreamsError` for topics of `short_retentions`, unless the user accepts the loss."""
    if short and not accepted:
        topics = ", ".join(f"{name} ({retention} ms)" for name, retention in sorted(short.items()))
        raise StreamsError(
            f"the results are so old that brokers may delete some immediately, by the retention.ms of {topics}: raise it "
            "(tidewheel topics configure; for a changelog by changelog_config of its store), or accept the loss with "
            "accept=['retention'] (--accept retention). Nothing is written yet; the next run continues here"
        )


def short_retentions(
    topics: Iterable[TopicDescription | NewTopic], oldest_ms: int, now_ms: int
) -> dict[str, int]:
    """Return the retention (ms) of topics that may delete records of a time immediately.

    Args:
        topics: Sink topics, described with `RETENTION_SETTINGS`, or changelogs.
        oldest_ms: Time of the oldest record that may be written.

    >>> def topic(**config: str) -> NewTopic:
    ...     named = {name.replace("_", "."): value for name, value in config.items()}
    ...     return NewTopic(name="out", partitions=1, config=named)
    >>> day = 86_400_000
    >>> short_retentions([topic(cleanup_policy="delete", retention_ms=f"{day}")], 0, 2 * day)
    {'out': 86400000}
    >>> short_retentions([topic(cleanup_policy="compact", retention_ms=f"{day}")], 0, 2 * day)
    {}
    """
    return {
        topic.name: retention_ms
        for topic in topics
        if "delete" in topic.config.get(_POLICY, "delete").split(",")
        # The broker's time of arrival decides, not the record's.
        and topic.config.get(_TIMESTAMPS) != "LogAppendTime"
        and 0 <= (retention_ms := int(topic.config.get(_RETENTION, "-1"))) < now_ms - oldest_ms
    }


def check_numbers_are_kept(began_ms: int, now_ms: int, retention_ms: int) -> None:
    """Raise `StreamsError` if brokers may have deleted the numbers of written records.

    Args:
        began_ms: When the first run of the job began to write outputs.
        retention_ms: The brokers' `offsets.retention.minutes`, of groups without members.
    """
    age_ms = now_ms - began_ms
    if age_ms >= retention_ms:
        raise StreamsError(
            f"this backfill began to write outputs {age_ms // _HOUR_MS} hours ago, but brokers keep for "
            f"{retention_ms // _HOUR_MS} hours how many records it has written (offsets.retention.minutes), so it "
            "would write records twice; delete its records from the sink topics, and run it with --restart"
        )
