import random
import time
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.murmur2 import murmur2 as plain_murmur2
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.serdes.partitioning import murmur2, partition_of

TOPIC = "orders"
PATIENCE_S = 30.0


def partitions_by_client(keys: list[bytes]) -> list[tuple[int, int]]:
    settings = ClientSettings(bootstrap_servers="127.0.0.1:9", application_id="shop")
    config: dict[str, Any] = settings.sink() | {
        "test.mock.num.brokers": 1,
        "delivery.report.only.error": False,
    }
    del config["bootstrap.servers"]
    producer = Producer(config)
    count = len(producer.list_topics(TOPIC, timeout=PATIENCE_S).topics[TOPIC].partitions)
    found: dict[int, int] = {}
    for number, key in enumerate(keys):

        def on_delivery(error: KafkaError | None, message: Message, number: int = number) -> None:
            assert error is None, error
            partition = message.partition()
            assert partition is not None
            found[number] = partition

        producer.produce(TOPIC, b"", key, on_delivery=on_delivery)
        producer.poll(0)
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found) < len(keys):
        producer.poll(0.1)
        assert time.monotonic() < deadline_s, "the client delivers to its own cluster"
    return [(found[number], count) for number in range(len(keys))]


def test_librdkafka_chooses_the_same_partition_for_every_key() -> None:
    chance = random.Random(7)
    keys = [chance.randbytes(length) for length in range(1, 64) for _ in range(20)]
    keys += [str(number).encode() for number in range(500)]
    told = partitions_by_client(keys)
    assert {count for _, count in told} == {4}, "more than one partition, or this shows nothing"
    assert [partition for partition, _ in told] == [
        partition_of(key, count) for key, (_, count) in zip(keys, told, strict=True)
    ]


@given(st.binary(max_size=40))
def test_the_fast_form_equals_the_plain_form(key: bytes) -> None:
    assert murmur2(key) == plain_murmur2(key)
