"""The model broker behaves like a real one: facts F1-F7, F9, F16 and F20 of the protocol.

For F20 (a late EndTxn decides the next transaction) a proxy sends a request to the real broker
twice.
"""

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fakes.proxy import END_TXN, KafkaProxy
from tests.integration.cluster import until
from tests.simulation.model.model_broker import BrokerError, GroupOffset, ModelBroker, UnstableError
from tidewheel.streams.broker import RunningBroker

PATIENCE_S = 20.0

#: Member of a group in a commit: an opaque value of the cluster, or None.
MemberOf = Any


class ModelProducer(Protocol):
    """A transactional producer; every method returns "" or the name of an error."""

    def init(self) -> str: ...
    def begin(self) -> str: ...
    def send(self, topic: str, value: str) -> str: ...
    def arrive(self) -> str: ...
    def offsets(self, group: str, topic: str, offset: int, member: MemberOf = None) -> str: ...
    def commit(self) -> str: ...
    def abort(self) -> str: ...


class BrokerUnderTest(Protocol):
    """Operations of both brokers."""

    def topic(self) -> str: ...

    def name(self) -> str: ...

    def producer(self, transactional_id: str) -> ModelProducer: ...

    def repeated_producer(self, transactional_id: str) -> ModelProducer:
        """Return a producer whose last EndTxn can be sent again."""

    def repeat_end(self, producer: ModelProducer) -> str:
        """Send it again, late; return the response."""

    def join(self, group: str, topic: str) -> MemberOf: ...

    def leave(self, member: MemberOf) -> None: ...

    def plain_commit(self, group: str, topic: str, offset: int) -> str:
        """Commit outside a transaction, without a member."""

    def committed(self, group: str, topic: str, *, stable: bool) -> int | None:
        """Return the committed offset (-1: none), or None while it is pending."""

    def visible(self, topic: str) -> tuple[list[str], int]:
        """Return the read-committed records, and the position at the end."""

    def high_watermark(self, topic: str) -> int: ...


class Model:
    def __init__(self) -> None:
        self.broker = ModelBroker()
        self._names = 0

    def topic(self) -> str:
        return self.name()

    def name(self) -> str:
        self._names += 1
        return f"name{self._names}"

    def producer(self, transactional_id: str) -> ModelProducer:
        return _ProducerOfModel(self.broker, transactional_id)

    repeated_producer = producer

    def repeat_end(self, producer: ModelProducer) -> str:
        return producer.commit()

    def join(self, group: str, topic: str) -> MemberOf:
        member = self.name()
        self.broker.members[member] = 1
        return (member, 1)

    def leave(self, member: MemberOf) -> None:
        del self.broker.members[member[0]]

    def plain_commit(self, group: str, topic: str, offset: int) -> str:
        return _code(lambda: self.broker.commit({f"{topic}-0": GroupOffset(offset, "")}))

    def committed(self, group: str, topic: str, *, stable: bool) -> int | None:
        try:
            found = self.broker.committed(f"{topic}-0", stable=stable)
        except UnstableError:
            return None
        return -1 if found is None else found.offset

    def visible(self, topic: str) -> tuple[list[str], int]:
        batch = self.broker.log(f"{topic}-0").read(0, 1 << 30)
        return [value for _, _, value in batch.records], batch.position

    def high_watermark(self, topic: str) -> int:
        return self.broker.log(f"{topic}-0").end


@dataclass
class _ProducerOfModel:
    broker: ModelBroker
    transactional_id: str
    epoch: int = -1

    def init(self) -> str:
        self.epoch = self.broker.init(self.transactional_id, 0)
        return ""

    def begin(self) -> str:
        return ""

    def send(self, topic: str, value: str) -> str:
        records = [(f"{topic}-0", None, value)]
        return _code(lambda: self.broker.produce(self.transactional_id, self.epoch, records, 0))

    def arrive(self) -> str:
        return ""

    def offsets(self, group: str, topic: str, offset: int, member: MemberOf = None) -> str:
        name, generation = ("", -1) if member is None else member
        return _code(
            lambda: self.broker.send_offsets(
                self.transactional_id,
                self.epoch,
                {f"{topic}-0": GroupOffset(offset, "")},
                0,
                member=name,
                generation=generation,
            )
        )

    def commit(self) -> str:
        return self._end(commit=True)

    def abort(self) -> str:
        return self._end(commit=False)

    def _end(self, *, commit: bool) -> str:
        def end() -> None:
            transaction = self.broker.end(self.transactional_id, self.epoch, commit=commit)
            if transaction is not None:
                self.broker.complete(transaction, 0)

        return _code(end)


def _code(action: Callable[[], object]) -> str:
    try:
        action()
    except BrokerError as error:
        return _fenced(error.code)
    except KafkaException as error:
        return _name(error.args[0])
    return ""


def _name(error: KafkaError) -> str:
    return _fenced(error.name())


def _fenced(code: str) -> str:
    """Return one name for the broker's and the client's fencing errors."""
    return "_FENCED" if code == "INVALID_PRODUCER_EPOCH" else code


class Real:
    def __init__(self, servers: str) -> None:
        self._common: dict[str, Any] = {"bootstrap.servers": servers}
        self._admin = AdminClient(self._common)
        self._names = 0
        self._consumers: list[Consumer] = []
        self._proxy: KafkaProxy | None = None

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()
        if self._proxy is not None:
            self._proxy.close()

    def name(self) -> str:
        self._names += 1
        return f"model-{time.time_ns()}-{self._names}"

    def topic(self) -> str:
        name = self.name()
        for future in self._admin.create_topics([NewTopic(name, 1, 1)]).values():
            future.result()
        return name

    def producer(self, transactional_id: str) -> ModelProducer:
        return _ProducerOfKafka(self._common, transactional_id)

    def repeated_producer(self, transactional_id: str) -> ModelProducer:
        if self._proxy is None:
            self._proxy = KafkaProxy(self._common["bootstrap.servers"])
        common = self._common | {"bootstrap.servers": self._proxy.bootstrap_servers}
        return _ProducerOfKafka(common, transactional_id)

    def repeat_end(self, producer: ModelProducer) -> str:
        assert self._proxy is not None, "made with the producer"
        _, version = struct.unpack_from(">hh", self._proxy.last[END_TXN])
        reply = self._proxy.repeat(END_TXN)
        # Correlation id, tagged fields (one byte, from version 3 on), throttle time, error.
        (code,) = struct.unpack_from(">h", reply, 8 if version < 3 else 9)
        return _name(KafkaError(code)) if code else ""

    def join(self, group: str, topic: str) -> MemberOf:
        consumer = Consumer(self._common | {"group.id": group, "enable.auto.commit": False})
        consumer.subscribe([topic])
        self._consumers.append(consumer)
        until = time.monotonic() + PATIENCE_S
        while not consumer.assignment():
            assert time.monotonic() < until, "the member never got in"
            consumer.poll(0.1)
        return consumer, consumer.consumer_group_metadata()

    def leave(self, member: MemberOf) -> None:
        self._consumers.remove(member[0])
        member[0].close()

    def plain_commit(self, group: str, topic: str, offset: int) -> str:
        consumer = Consumer(self._common | {"group.id": group, "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(topic, 0)])
            return _code(
                lambda: consumer.commit(
                    offsets=[TopicPartition(topic, 0, offset)], asynchronous=False
                )
            )
        finally:
            consumer.close()

    def committed(self, group: str, topic: str, *, stable: bool) -> int | None:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        future = self._admin.list_consumer_group_offsets(
            [asked], require_stable=stable, request_timeout=3.0
        )[group]
        try:
            found = future.result().topic_partitions
        except KafkaException:
            return None
        if found and found[0].error is not None:
            return None
        return max(int(found[0].offset), -1) if found else -1

    def visible(self, topic: str) -> tuple[list[str], int]:
        consumer = Consumer(
            self._common
            | {"group.id": self.name(), "enable.partition.eof": True, "enable.auto.commit": False}
        )
        try:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            found: list[str] = []
            until = time.monotonic() + PATIENCE_S
            while True:
                assert time.monotonic() < until, "the end never came"
                message = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return found, int(message.offset() or 0)
                found.append((message.value() or b"").decode())
        finally:
            consumer.close()

    def high_watermark(self, topic: str) -> int:
        consumer = Consumer(self._common | {"group.id": self.name()})
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)[1]
        finally:
            consumer.close()


class _ProducerOfKafka:
    def __init__(self, common: dict[str, Any], transactional_id: str) -> None:
        settings = common | {"transactional.id": transactional_id, "transaction.timeout.ms": 60_000}
        self._producer = Producer(settings)
        self._common = common

    def init(self) -> str:
        return _code(lambda: self._producer.init_transactions(PATIENCE_S))

    def begin(self) -> str:
        return _code(self._producer.begin_transaction)

    def send(self, topic: str, value: str) -> str:
        # The commit reports delivery errors: a callback would run while a fatal error is raised.
        code = _code(lambda: self._producer.produce(topic, value.encode(), partition=0))
        # A fenced client returns only this error; the commit has the reason.
        return "" if code == "_FATAL" else code

    def arrive(self) -> str:
        return "" if self._producer.flush(PATIENCE_S) == 0 else "it did not arrive"

    def offsets(self, group: str, topic: str, offset: int, member: MemberOf = None) -> str:
        stranger = Consumer(self._common | {"group.id": group})
        try:
            metadata = stranger.consumer_group_metadata() if member is None else member[1]
            return _code(
                lambda: self._producer.send_offsets_to_transaction(
                    [TopicPartition(topic, 0, offset)], metadata, PATIENCE_S
                )
            )
        finally:
            stranger.close()

    def commit(self) -> str:
        return _code(lambda: self._producer.commit_transaction(PATIENCE_S))

    def abort(self) -> str:
        def end() -> None:
            self._producer.flush(PATIENCE_S)  # otherwise the client drops unsent records
            self._producer.abort_transaction(PATIENCE_S)

        return _code(end)


@pytest.fixture(params=["model", pytest.param("kafka", marks=pytest.mark.broker)])
def asked(request: pytest.FixtureRequest) -> Iterator[BrokerUnderTest]:
    if request.param == "model":
        yield Model()
        return
    broker: RunningBroker = request.getfixturevalue("kafka_broker")
    real = Real(broker.bootstrap_servers)
    yield real
    real.close()


def started(asked: BrokerUnderTest, transactional_id: str | None = None) -> ModelProducer:
    producer = asked.producer(transactional_id or asked.name())
    assert producer.init() == ""
    return producer


def commit_offsets(
    producer: ModelProducer, group: str, topic: str, offset: int, member: MemberOf = None
) -> str:
    assert producer.begin() == ""
    code = producer.offsets(group, topic, offset, member)
    if code:
        producer.abort()
        return code
    return producer.commit()


def test_F1_a_group_without_members_accepts_plain_commits(asked: BrokerUnderTest) -> None:
    topic, group = asked.topic(), asked.name()
    assert asked.plain_commit(group, topic, 7) == ""
    until(lambda: asked.committed(group, topic, stable=True) == 7, "the commit is decided")


def test_F2_a_group_with_members_refuses_plain_commits_of_strangers(asked: BrokerUnderTest) -> None:
    topic, group = asked.topic(), asked.name()
    member = asked.join(group, topic)
    assert asked.plain_commit(group, topic, 7) == "UNKNOWN_MEMBER_ID"
    asked.leave(member)
    assert asked.plain_commit(group, topic, 8) == ""


def test_F3_a_transactional_commit_without_a_member_is_accepted_in_every_case(
    asked: BrokerUnderTest,
) -> None:
    topic, group = asked.topic(), asked.name()
    producer = started(asked)
    assert commit_offsets(producer, group, topic, 1) == ""
    asked.join(group, topic)
    assert commit_offsets(producer, group, topic, 2) == ""
    until(lambda: asked.committed(group, topic, stable=True) == 2, "the commit is decided")


def test_F4_a_member_that_left_can_no_longer_commit(asked: BrokerUnderTest) -> None:
    topic, group = asked.topic(), asked.name()
    member = asked.join(group, topic)
    producer = started(asked)
    assert commit_offsets(producer, group, topic, 3, member) == ""
    if isinstance(asked, Model):
        assert commit_offsets(producer, group, topic, 4, (member[0], 9)) == "ILLEGAL_GENERATION"
    asked.leave(member)
    assert commit_offsets(producer, group, topic, 5, member) == "UNKNOWN_MEMBER_ID"
    assert commit_offsets(producer, group, topic, 6) == ""
    until(lambda: asked.committed(group, topic, stable=True) == 6, "the commit is decided")


def test_F5_a_member_may_commit_what_it_does_not_own(asked: BrokerUnderTest) -> None:
    topic, other, group = asked.topic(), asked.topic(), asked.name()
    member = asked.join(group, topic)
    assert commit_offsets(started(asked), group, other, 5, member) == ""
    until(lambda: asked.committed(group, other, stable=True) == 5, "the commit is decided")


def test_F6_an_offset_may_decrease(asked: BrokerUnderTest) -> None:
    topic, group = asked.topic(), asked.name()
    producer = started(asked)
    assert commit_offsets(producer, group, topic, 15) == ""
    assert commit_offsets(producer, group, topic, 3) == ""
    until(lambda: asked.committed(group, topic, stable=True) == 3, "the commit is decided")


def test_F7_readers_wait_for_a_pending_offset_until_it_is_fenced(asked: BrokerUnderTest) -> None:
    topic, group, shared = asked.topic(), asked.name(), asked.name()
    producer = started(asked, shared)
    assert commit_offsets(producer, group, topic, 4) == ""
    assert producer.begin() == ""
    assert producer.offsets(group, topic, 9) == ""
    assert asked.committed(group, topic, stable=True) is None
    assert asked.committed(group, topic, stable=False) == 4
    started(asked, shared)
    until(lambda: asked.committed(group, topic, stable=True) == 4, "the commit is decided")


def test_F9_a_fenced_zombie_stays_fenced(asked: BrokerUnderTest) -> None:
    topic, shared = asked.topic(), asked.name()
    zombie = started(asked, shared)
    assert zombie.begin() == ""
    assert zombie.send(topic, "before") == ""
    newer = started(asked, shared)
    assert [zombie.send(topic, "after") or zombie.commit(), zombie.commit()] == ["_FENCED"] * 2
    assert newer.begin() == ""
    assert newer.send(topic, "newer") == ""
    assert newer.commit() == ""
    assert asked.visible(topic)[0] == ["newer"]


def test_F16_an_aborted_tail_is_skipped(asked: BrokerUnderTest) -> None:
    topic = asked.topic()
    producer = started(asked)
    for values, commit in (("ab", True), ("cd", False)):
        assert producer.begin() == ""
        for value in values:
            assert producer.send(topic, value) == ""
        assert (producer.commit() if commit else producer.abort()) == ""
    # The cluster responds before it has written the last marker.
    until(lambda: asked.high_watermark(topic) == 6, "both markers are in the log")
    assert asked.visible(topic) == (["a", "b"], 6)


def test_F20_a_late_end_decides_the_next_transaction(asked: BrokerUnderTest) -> None:
    topic = asked.topic()
    producer = asked.repeated_producer(asked.name())
    assert producer.init() == ""
    _commit(producer, topic, "first")
    _open(producer, topic, "second")
    until(lambda: asked.visible(topic)[0] == ["first"], "the first is committed")
    assert asked.repeat_end(producer) == ""
    until(lambda: asked.visible(topic)[0] == ["first", "second"], "the second is committed")
    assert producer.abort() == "INVALID_TXN_STATE"


def test_F20_a_late_end_is_refused_after_a_new_producer(asked: BrokerUnderTest) -> None:
    topic, shared = asked.topic(), asked.name()
    retired = asked.repeated_producer(shared)
    assert retired.init() == ""
    _commit(retired, topic, "first")
    newer = started(asked, shared)
    _open(newer, topic, "second")
    assert asked.repeat_end(retired) == "_FENCED"
    assert newer.abort() == ""
    _commit(newer, topic, "third")
    until(lambda: "third" in asked.visible(topic)[0], "the third is committed")
    assert asked.visible(topic)[0] == ["first", "third"]


def _open(producer: ModelProducer, topic: str, value: str) -> None:
    assert producer.begin() == ""
    assert producer.send(topic, value) == ""
    assert producer.arrive() == ""


def _commit(producer: ModelProducer, topic: str, value: str) -> None:
    _open(producer, topic, value)
    assert producer.commit() == ""
