"""Record limit: input records count, and internal topics are finished."""

from typing import Any

from tidewheel import StreamsBuilder, StreamsConfig
from tidewheel.streams.worker.application.record_limit import RecordLimit


def _limit(count: int) -> RecordLimit:
    builder = StreamsBuilder()
    words = builder.stream("in", key_serde=str, value_serde=str)
    words.group_by(lambda value: value, key_serde=str, value_serde=str).count()
    builder.stream("other", key_serde=str, value_serde=str).foreach(print)
    config = StreamsConfig(application_id="app", bootstrap_servers="unused:9092")
    return RecordLimit(builder.build().spec(config), count, 100)


def _metrics(inputs: int, internal: int, lag: int = 0) -> dict[str, Any]:
    tasks = {"0_0": inputs, "0_1": inputs, "1_0": internal}
    (repartitioned,) = _limit(1)._internal_topics
    return {
        "tasks": {task: {"process-total": float(count)} for task, count in tasks.items()},
        "lag": {f"app-{repartitioned}-0": lag, "in-0": 500},
    }


def test_records_of_input_topics_count_and_those_of_internal_ones_do_not() -> None:
    limit = _limit(10)
    assert not limit.is_reached({})
    assert not limit.is_reached(_metrics(4, 100))
    assert limit.is_reached(_metrics(5, 0))


def test_only_subtopologies_that_read_input_topics_pause() -> None:
    assert _limit(1).pausable == {0, 2}


def test_a_run_is_finished_when_internal_topics_bring_nothing_more() -> None:
    limit = _limit(1)
    assert not limit.is_finished(_metrics(5, 0), 10.0)
    assert not limit.is_finished(_metrics(5, 3), 10.9)
    assert not limit.is_finished(_metrics(5, 3, lag=1), 11.5)
    assert not limit.is_finished(_metrics(5, 3), 12.4)
    assert limit.is_finished(_metrics(5, 3), 12.5)


def test_without_internal_topics_a_run_is_finished_immediately() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str).foreach(print)
    config = StreamsConfig(application_id="app", bootstrap_servers="unused:9092")
    assert RecordLimit(builder.build().spec(config), 1, 100).is_finished({}, 0.0)
