"""Plan of a backfill: what becomes of outputs, all reasons against it at once, and schedules."""

from collections.abc import Sequence

import pytest

from tests.fakes.broker import FakeBroker
from tests.streams.group.fake_group import GroupAdmin
from tidewheel import (
    ConfigError,
    Materialized,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    StreamsBuilder,
    StreamsConfig,
    Topology,
)
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.bulk.backfill.objections import Difference
from tidewheel.streams.bulk.backfill.plan import (
    BackfillPlan,
    check_differences,
    output_choice,
    plan_backfill,
)
from tidewheel.streams.bulk.batch.source_segments import OffsetRange
from tidewheel.streams.bulk.bootstrap.plan import parse_input_offsets

_CANARY = "canary-of-a-backfill"


@pytest.mark.parametrize(
    ("outputs", "choice"),
    [
        ("discard", "discard"),
        ("topics", "topics"),
        ("s3://lake/outputs", "url"),
        ("lake/outputs", "url"),
        ("C:\\outputs", "url"),
    ],
)
@pytest.mark.parametrize("has_sinks", [True, False])
def test_the_fate_of_outputs(outputs: str, choice: str, *, has_sinks: bool) -> None:
    assert output_choice(outputs, has_sinks) == choice


def test_only_a_topology_without_sinks_needs_no_fate_of_outputs() -> None:
    assert output_choice(None, spec_has_sinks=False) == "discard"
    with pytest.raises(ConfigError, match="the topology writes to topics; say what"):
        output_choice(None, spec_has_sinks=True)
    for text in ("", "topic", "Discard"):
        with pytest.raises(ConfigError, match=f"outputs is '{text}'; say what"):
            output_choice(text, spec_has_sinks=False)


class _Ticking(Processor[str, str, None, None]):
    def init(self, context: ProcessorContext[None, None]) -> None:
        super().init(context)
        context.schedule(1_000, PunctuationType.WALL_CLOCK_TIME, lambda _: None)

    def process(self, record: Record[str, str]) -> None: ...


class _Flowing(Processor[str, str, None, None]):
    def init(self, context: ProcessorContext[None, None]) -> None:
        super().init(context)
        context.schedule(1_000, PunctuationType.STREAM_TIME, lambda _: None)

    def process(self, record: Record[str, str]) -> None: ...


def _topology(*, logging: bool = True) -> Topology:
    builder = StreamsBuilder()
    countries = builder.global_table("countries", key_serde=str, value_serde=str)
    lines = builder.stream("lines", key_serde=str, value_serde=str)
    lines.process(_Ticking, name="ticking")
    lines.process(_Flowing, name="flowing")
    lines.join(countries, lambda line, _: line, key_selector=lambda key, _: key).to(
        "out", value_serde=str
    )
    counted = lines.select_key(lambda _, line: line).group_by_key(key_serde=str, value_serde=str)
    counted.count(store=Materialized("counts", logging=logging))
    return builder.build()


def _plan(
    topology: Topology,
    outputs: str | None = "topics",
    missing: Sequence[str] = (),
    history: Sequence[str] = (),
) -> BackfillPlan:
    broker = FakeBroker()
    for topic, partitions in (("lines", 2), ("countries", 1), ("out", 3)):
        if topic not in missing:
            broker.create_topic(topic, partitions)
    for number in range(5):
        broker.send("lines", b"v", b"k", partition=number % 2)
    broker.send("countries", b"v", b"k")
    config = StreamsConfig(application_id="shop", kafka={"sasl.password": _CANARY})
    admin = GroupAdmin(broker)
    return plan_backfill(
        topology,
        config,
        admin,
        admin.list_topics(),
        outputs=outputs,
        begins=None,
        until=parse_input_offsets("earliest"),
        history=history,
    )


def test_a_plan_reads_sources_to_their_ends_and_global_tables_whole() -> None:
    plan = _plan(_topology())
    assert plan.ranges == {
        TopicPartition("lines", 0): OffsetRange(first=0, end=0),
        TopicPartition("lines", 1): OffsetRange(first=0, end=0),
        TopicPartition("countries", 0): OffsetRange(first=0, end=1),
    }
    assert plan.records == 1
    assert plan.changelogs == ("shop-counts-changelog",)
    assert plan.job.partition_count("out") == 3
    assert not plan.job.discards_outputs
    assert _plan(_topology(), "discard").job.discards_outputs


def test_processors_of_a_schedule_are_found_before_the_run() -> None:
    (found,) = _plan(_topology()).differences
    assert found.reason == "wall-clock"
    assert found.node.startswith("ticking (")
    assert "test_plan.py:" in found.node


def test_secrets_stay_with_the_driver() -> None:
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    plan = _plan(_topology())
    assert _CANARY.encode() not in cloudpickle.dumps(plan.job)  # type: ignore[no-untyped-call] # it has no types


def test_all_reasons_are_in_one_message() -> None:
    with pytest.raises(ConfigError) as raised:
        _plan(_topology(logging=False), missing=["out"], history=["countries", "unread"])
    text = str(raised.value)
    for reason in (
        "store counts has no changelog",
        "countries",
        "unread",
        "output topic out does not exist; create it: tidewheel topics create out",
    ):
        assert reason in text
    assert _plan(_topology(), "discard", missing=["out"]).records == 1


def test_differences_that_are_not_accepted_are_listed_with_the_option() -> None:
    clock = Difference(reason="wall-clock", node="a", text="ticks")
    order = Difference(reason="order", node="b", text="reduces")
    with pytest.raises(ConfigError, match=r"wall-clock: a: ticks; order: b: .*order,wall-clock"):
        check_differences((clock, order), frozenset())
    with pytest.raises(ConfigError, match="order: b: reduces") as raised:
        check_differences((clock, order), frozenset({"wall-clock"}))
    assert "ticks" not in str(raised.value)
    check_differences((clock, order), frozenset({"wall-clock", "order"}))
