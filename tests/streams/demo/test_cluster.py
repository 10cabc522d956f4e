"""The demo's cluster access, on a fake cluster."""

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeClients
from tidewheel import Serdes, StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.demo import cluster
from tidewheel.streams.demo.tables import table, to_batches
from tidewheel.tasks.kafka.ports import CommittedOffset


@pytest.fixture
def fakes() -> FakeClients:
    return FakeClients(FakeBroker())


def test_topics_keep_records_of_any_age(fakes: FakeClients) -> None:
    cluster.create_topics(fakes.admin(), ["flights"])
    assert fakes.broker.topics["flights"].config["retention.ms"] == "-1"


def test_existing_topics_are_never_written_to(fakes: FakeClients) -> None:
    fakes.broker.create_topic("flights")
    with pytest.raises(StreamsError, match="topics flights exist already"):
        cluster.create_topics(fakes.admin(), ["weather", "flights"])
    assert set(fakes.broker.topics) == {"flights"}


def test_loading_reports_its_progress(fakes: FakeClients) -> None:
    fakes.broker.create_topic("airlines", 4)
    seen: list[int] = []
    rows = ({"carrier": str(number), "name": "x"} for number in range(10_005))
    batches = to_batches(table("airlines"), rows)
    assert cluster.load(fakes.sink_producer(), batches, seen.append) == 10_005
    assert seen == [10_000, 10_005]
    assert len(fakes.broker.records("airlines")) == 10_005


def test_records_that_could_not_be_written_are_an_error(fakes: FakeClients) -> None:
    fakes.broker.create_topic("airlines")
    fakes.broker.fail_sends("airlines")
    batches = to_batches(table("airlines"), [{"carrier": "UA", "name": "x"}])
    with pytest.raises(StreamsError, match="1 records could not be written to topic airlines"):
        cluster.load(fakes.sink_producer(), batches, lambda _: None)


def test_the_demo_is_finished_when_input_and_repartition_topics_are_committed(
    fakes: FakeClients,
) -> None:
    broker, admin = fakes.broker, fakes.admin()
    broker.create_topic("flights")
    broker.create_topic("demo-delays-repartition")
    for _ in range(3):
        broker.send("flights", b"x")
        broker.send("demo-delays-repartition", b"x")
    inputs = cluster.input_ends(admin, ["flights"])
    flights, between = TopicPartition("flights", 0), TopicPartition("demo-delays-repartition", 0)
    assert cluster.group_progress(admin, "demo", inputs).done == 0
    steps = [
        ({flights: 2}, False),
        ({flights: 3, between: 1}, False),
        ({flights: 3, between: 2}, True),
    ]
    for offsets, finished in steps:
        broker.groups["demo"] = {each: CommittedOffset(at, "") for each, at in offsets.items()}
        progress = cluster.group_progress(admin, "demo", inputs)
        assert (progress.done, progress.total) == (offsets[flights], 3)
        assert progress.finished is finished


def test_the_newest_value_of_each_key_is_read(fakes: FakeClients) -> None:
    broker = fakes.broker
    broker.create_topic("counts", 2)
    broker.create_topic("empty")
    for number in range(1, 4):
        broker.send("counts", Serdes.int64().serialize("", number), b"a", partition=0)
    broker.send("counts", b'{"mean":1.5}', b"b", partition=1)
    found = cluster.read_newest(fakes.admin(), fakes.changelog_reader, ["counts", "empty"])
    assert found == {"counts": {"a": 3, "b": {"mean": 1.5}}, "empty": {}}


def test_clean_up_keeps_other_topics(fakes: FakeClients) -> None:
    for topic in ("flights", "demo-1-delays-changelog", "demo-10-x-changelog", "orders"):
        fakes.broker.create_topic(topic)
    fakes.broker.groups["demo-1"] = {TopicPartition("flights", 0): CommittedOffset(1, "")}
    cluster.delete_all(fakes.admin(), "demo-1", ["flights"])
    assert set(fakes.broker.topics) == {"demo-10-x-changelog", "orders"}
    assert "demo-1" not in fakes.broker.groups
