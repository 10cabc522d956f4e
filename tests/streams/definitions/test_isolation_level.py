from typing import Any
from unittest.mock import patch

import pytest

from tidewheel import (
    IsolationLevel,
    KafkaStreams,
    RunOptions,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
)


def app(**settings: Any) -> KafkaStreams:
    builder = StreamsBuilder()
    builder.table("in", key_serde=str, value_serde=str, store="rows")
    config = StreamsConfig(application_id="app", bootstrap_servers="unused:9092", **settings)
    return KafkaStreams(builder.build(), config, options=RunOptions())


@pytest.mark.parametrize(
    ("setting", "call", "level"),
    [
        (None, None, "read_committed"),
        (None, "read_uncommitted", "read_uncommitted"),
        ("read_uncommitted", None, "read_uncommitted"),
        (IsolationLevel.READ_UNCOMMITTED, "read_committed", "read_committed"),
        ("read_committed", IsolationLevel.READ_UNCOMMITTED, "read_uncommitted"),
    ],
)
def test_the_call_wins_over_the_setting(setting: Any, call: Any, level: str) -> None:
    settings = {} if setting is None else {"default_interactive_query_isolation_level": setting}
    with patch("tidewheel.streams.kafka_streams.store_view") as view:
        app(**settings).store("rows", isolation_level=call)
    assert view.call_args.kwargs["level"] is IsolationLevel(level)


@pytest.mark.parametrize("wrong", ["READ_UNCOMMITTED", "serializable", 1, True])
def test_another_level_is_refused_by_the_call(wrong: Any) -> None:
    with pytest.raises(StreamsError, match="'read_committed' or 'read_uncommitted'"):
        app().store("rows", isolation_level=wrong)
