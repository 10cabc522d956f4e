"""Warnings and refusals before outputs are written."""

import pytest

from tidewheel import StreamsError
from tidewheel.streams.bulk.backfill.output_checks import (
    check_numbers_are_kept,
    short_retentions,
)
from tidewheel.tasks.kafka.ports import NewTopic

DAY_MS = 86_400_000
NOW_MS = 1_795_000_000_000


def _topic(name: str, **config: str) -> NewTopic:
    named = {key.replace("_", "."): value for key, value in config.items()}
    return NewTopic(name=name, partitions=1, config=named)


def test_topics_that_would_delete_old_records_are_found() -> None:
    day = str(DAY_MS)
    topics = [
        _topic("day", cleanup_policy="delete", retention_ms=day),
        _topic("both", cleanup_policy="compact,delete", retention_ms=day),
        _topic("compact", cleanup_policy="compact", retention_ms=day),
        _topic("all", cleanup_policy="delete", retention_ms="-1"),
        _topic("month", cleanup_policy="delete", retention_ms=str(30 * DAY_MS)),
        _topic(
            "arrival",
            cleanup_policy="delete",
            retention_ms=day,
            message_timestamp_type="LogAppendTime",
        ),
    ]
    found = short_retentions(topics, NOW_MS - 2 * DAY_MS, NOW_MS)
    assert found == {"day": DAY_MS, "both": DAY_MS}
    assert short_retentions(topics, NOW_MS - DAY_MS, NOW_MS) == {}


def test_numbers_that_brokers_may_have_deleted_stop_a_run() -> None:
    check_numbers_are_kept(NOW_MS, NOW_MS + 7 * DAY_MS - 1, 7 * DAY_MS)
    with pytest.raises(StreamsError, match=r"168 hours ago.*offsets.retention.minutes"):
        check_numbers_are_kept(NOW_MS, NOW_MS + 7 * DAY_MS, 7 * DAY_MS)
