"""Reports of changed topics."""

import re
import threading
from collections.abc import Mapping

import pytest

from tidewheel import MissingSourceTopicError, StreamsBuilder, StreamsError
from tidewheel.streams.worker.plan_watch import PlanWatch, inputs
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, plan_application
from tidewheel.tasks.kafka.ports import UnansweredError


def _plan(topics: Mapping[str, int]) -> ApplicationPlan:
    builder = StreamsBuilder()
    builder.stream(re.compile("orders-.*"), key_serde=str, value_serde=str).to("out")
    builder.stream("fixed", key_serde=str, value_serde=str).to("out")
    return plan_application(builder.build().spec(), "app", topics)


class Stage:
    def __init__(self, **topics: int) -> None:
        self.topics = {"fixed": 1} | {name.replace("_", "-"): n for name, n in topics.items()}
        self.failure: StreamsError | None = None
        self.told: list[ApplicationPlan] = []
        self.watch = PlanWatch(
            _plan(self.topics),
            list_topics=self.list_topics,
            make_plan=_plan,
            changed=self.told.append,
            every_ms=3_600_000,
        )

    def list_topics(self) -> dict[str, int]:
        if self.failure is not None:
            raise self.failure
        return self.topics


def test_N12_a_new_topic_that_the_pattern_matches_makes_another_plan() -> None:
    stage = Stage(orders_a=2)
    stage.watch.refresh()
    assert stage.told == []
    stage.topics["orders-b"] = 3
    stage.watch.refresh()
    stage.watch.refresh()
    assert [inputs(plan) for plan in stage.told] == [inputs(_plan(stage.topics))]
    assert len(stage.told[0].tasks) == 4


def test_N8_more_partitions_make_another_plan() -> None:
    stage = Stage(orders_a=2)
    stage.topics["fixed"] = 3
    stage.watch.refresh()
    assert [str(task) for task in stage.told[0].tasks if task.subtopology == 1] == [
        "1_0",
        "1_1",
        "1_2",
    ]


def test_topics_outside_the_pattern_change_nothing() -> None:
    stage = Stage(orders_a=2)
    stage.topics["unrelated"] = 7
    stage.watch.refresh()
    assert stage.told == []


def test_a_cluster_that_does_not_answer_is_no_change() -> None:
    stage = Stage(orders_a=2)
    stage.failure = StreamsError("list topics: timed out")
    stage.watch.refresh()
    stage.watch.check()
    stage.failure = None
    stage.topics["orders-b"] = 1
    stage.watch.refresh()
    assert len(stage.told) == 1


def test_brokers_that_stop_answering_within_a_check_end_no_worker() -> None:
    """They list the topics, but don't answer the request for their settings."""
    stage = Stage(orders_a=2)

    def make_plan(_topics: Mapping[str, int]) -> ApplicationPlan:
        raise UnansweredError("read the settings of topics: no answer")

    stage.watch._make_plan = make_plan
    stage.watch.refresh()
    stage.watch.check()
    stage.watch._make_plan = _plan
    stage.topics["orders-b"] = 1
    stage.watch.refresh()
    assert len(stage.told) == 1


def test_a_topic_missing_from_one_check_is_no_change() -> None:
    """If it is gone, its consumer raises."""
    stage = Stage(orders_a=2)
    del stage.topics["fixed"]
    with pytest.raises(MissingSourceTopicError):
        _plan(stage.topics)
    stage.watch.refresh()
    stage.watch.check()
    assert stage.told == []


def test_N12_a_pattern_topic_counts_as_deleted_after_two_checks() -> None:
    """One answer may come from a starting broker."""
    stage = Stage(orders_a=2, orders_b=3)
    for _ in range(2):
        gone = stage.topics.pop("orders-b")
        stage.watch.refresh()
        stage.topics["orders-b"] = gone
        stage.watch.refresh()
    assert stage.told == []
    del stage.topics["orders-b"]
    stage.watch.refresh()
    assert stage.told == []
    stage.watch.refresh()
    stage.watch.refresh()
    assert [inputs(plan) for plan in stage.told] == [inputs(_plan(stage.topics))]
    assert len(stage.told[0].tasks) == 3


def test_a_report_of_a_deleted_topic_triggers_an_early_check() -> None:
    """The interval of this watch is an hour."""
    stage = Stage(orders_a=2)
    told = threading.Event()
    stage.watch._changed = lambda _plan: told.set()
    stage.topics["orders-b"] = 1
    stage.watch.start()
    stage.watch.refresh_soon()
    assert told.wait(10)
    stage.watch.close()
    stage.watch._thread.join(10)
    assert not stage.watch._thread.is_alive()


def test_incompatible_topic_changes_end_the_worker() -> None:
    """An input topic with state has more partitions than its changelog now."""
    stage = Stage(orders_a=2)
    misfit = StreamsError(
        "internal topic app-counts-changelog has 2 partitions but the application needs 3"
    )

    def make_plan(_topics: Mapping[str, int]) -> ApplicationPlan:
        raise misfit

    stage.watch._make_plan = make_plan
    stage.watch.refresh()
    with pytest.raises(StreamsError, match="has 2 partitions but the application needs 3"):
        stage.watch.check()


def test_no_change_is_reported_after_close() -> None:
    stage = Stage(orders_a=2)
    stage.topics["orders-b"] = 1
    stage.watch.close()
    stage.watch.refresh()
    assert stage.told == []
