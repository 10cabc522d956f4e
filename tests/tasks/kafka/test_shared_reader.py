"""Shared reader: shards with positions of their own over one reader of a partition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeReader
from tidewheel.rebalance.model import Shard, ShardInput, TopicPartition
from tidewheel.tasks.kafka.shared_reader import SharedReader

IN = TopicPartition("in", 0)
OTHER = TopicPartition("other", 0)
SHARDS = [ShardInput.of(IN, shard) for shard in Shard.all_of(4)]

RECORDS = 20

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "poll", "pause", "resume"]),
        st.sampled_from(SHARDS),
        st.integers(0, RECORDS),
    ),
    max_size=25,
)


class Reading:
    """Shards and another partition that read; what each has read so far."""

    def __init__(self, *, parks: bool) -> None:
        broker = FakeBroker()
        for topic in ("in", "other"):
            broker.create_topic(topic, 1)
            for number in range(RECORDS):
                broker.send(topic, b"v", b"%d" % number, timestamp=number)
        self.reader = FakeReader(broker)
        self.reader.assign({})
        self.shared = SharedReader(self.reader, parks=parks)
        self.shared.add({OTHER: 3})
        self.read: dict[TopicPartition, list[int]] = {OTHER: []}
        self.starts = {OTHER: 3}

    def add(self, at: TopicPartition, offset: int) -> None:
        if at not in self.read:
            self.shared.add({at: offset})
            self.read[at], self.starts[at] = [], offset

    def remove(self, at: TopicPartition, _: int) -> None:
        if self.read.pop(at, None) is not None:
            self.shared.remove([at])

    def poll(self, _: TopicPartition, most: int) -> None:
        for run in self.reader.poll(max(most, 1), 0.0):
            for at, share in self.shared.shares(run):
                self.read[at].extend(share.offsets)

    def pause(self, at: TopicPartition, _: int) -> None:
        if at in self.read:
            self.shared.pause([at])

    def resume(self, at: TopicPartition, _: int) -> None:
        if at in self.read:
            self.shared.resume([at])

    def check(self) -> None:
        for at, offsets in self.read.items():
            assert offsets == list(range(self.starts[at], self.starts[at] + len(offsets)))
            assert self.shared.positions()[at] >= self.starts[at] + len(offsets)


@pytest.mark.parametrize("parks", [False, True])
@given(steps=STEPS)
def test_each_shard_gets_the_records_from_its_start_once_and_in_order(
    parks: bool, steps: list[tuple[str, TopicPartition, int]]
) -> None:
    reading = Reading(parks=parks)
    for step, at, offset in steps:
        getattr(reading, step)(at, offset)
        reading.check()
    for at in SHARDS:
        reading.resume(at, 0)
    for _ in range(RECORDS):
        reading.poll(OTHER, RECORDS)
    reading.check()
    assert reading.shared.positions() == dict.fromkeys(reading.read, RECORDS)
    for at, offsets in reading.read.items():
        assert len(offsets) == RECORDS - reading.starts[at]


@pytest.mark.parametrize(("parks", "others"), [(False, 0), (True, RECORDS)])
def test_a_paused_shard_holds_the_others_up_or_is_left_behind(parks: bool, others: int) -> None:
    reading = Reading(parks=parks)
    for at in SHARDS:
        reading.add(at, 0)
    reading.pause(SHARDS[0], 0)
    reading.poll(OTHER, RECORDS * 2)
    assert {at: len(reading.read[at]) for at in SHARDS} == {
        SHARDS[0]: 0,
        **dict.fromkeys(SHARDS[1:], others),
    }
