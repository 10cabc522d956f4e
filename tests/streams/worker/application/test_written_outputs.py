"""Written outputs: committed records between begin and read, with the sinks' serdes."""

import time

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin, FakeReader
from tidewheel import KafkaStreams, StreamsBuilder, StreamsConfig, StreamsError, TopologyError
from tidewheel.streams.worker.application.written_outputs import WrittenOutputs
from tidewheel.tasks.kafka.ports import UnansweredError


def _outputs(broker: FakeBroker) -> WrittenOutputs:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    stream.map_values(len).to("out", value_serde=int)
    stream.to(lambda *_: "chosen", value_serde=str)
    stream.group_by(lambda value: value, key_serde=str, value_serde=str).count()
    config = StreamsConfig(application_id="app", bootstrap_servers="unused:9092")
    return WrittenOutputs(
        builder.build().spec(config),
        make_admin=lambda timeout_s: FakeAdmin(broker),
        make_source=lambda: FakeReader(broker),
    )


def _broker(topics: dict[str, int]) -> FakeBroker:
    broker = FakeBroker()
    for name, partitions in topics.items():
        broker.create_topic(name, partitions)
    return broker


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def test_records_since_the_beginning_are_returned_in_order_of_their_places() -> None:
    broker = _broker({"in": 1, "out": 2, "chosen": 1})
    broker.send("out", _number(1), b"before", partition=1)
    outputs = _outputs(broker)
    outputs.begin()
    assert outputs.read() == []
    broker.send("out", _number(2), b"b", partition=1, timestamp=7)
    broker.send("out", None, b"a", partition=0, timestamp=9)
    broker.send("out", _number(3), None, partition=1)
    broker.send("chosen", b"other", b"a")
    records = outputs.read()
    assert [(each.partition, each.offset, each.key, each.value) for each in records] == [
        (0, 0, "a", None),
        (1, 1, "b", 2),
        (1, 2, None, 3),
    ]
    assert [each.timestamp for each in records[:2]] == [9, 7]


def test_a_topic_made_meanwhile_is_read_from_its_first_record() -> None:
    broker = _broker({"in": 1})
    outputs = _outputs(broker)
    outputs.begin()
    broker.create_topic("out", 1)
    broker.send("out", _number(1), b"a")
    assert [each.value for each in outputs.read()] == [1]


def test_outputs_that_brokers_do_not_return_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.streams.worker.application.written_outputs._PATIENCE_S", 0.05)
    broker = _broker({"in": 1, "out": 1})
    outputs = _outputs(broker)
    outputs.begin()
    broker.send("out", _number(1), b"a")
    monkeypatch.setattr(FakeReader, "poll", lambda *_: [])
    with pytest.raises(StreamsError, match="read their topics"):
        outputs.read()


def _app() -> KafkaStreams:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str).to("out")
    config = StreamsConfig(application_id="app", bootstrap_servers="127.0.0.1:1")
    return KafkaStreams(builder.build(), config)


def test_a_run_without_a_broker_ends_at_its_timeout() -> None:
    begin_s = time.monotonic()
    with pytest.raises(UnansweredError, match=r"127\.0\.0\.1:1"):
        _app().run(count=1, timeout=1500, collect=True)
    assert time.monotonic() - begin_s < 20  # without a limit, 30 s


@pytest.mark.parametrize("arguments", [{"count": "1"}, {"timeout": "soon"}, {"timeout": -1}])
def test_wrong_arguments_of_a_run_are_no_faults_of_the_topology(
    arguments: dict[str, object],
) -> None:
    with pytest.raises(StreamsError) as caught:
        _app().run(**arguments)  # type: ignore[call-overload]  # wrong on purpose
    assert not isinstance(caught.value, TopologyError)
