"""A task with many key ranges moves to a worker with a copy, during its work."""

import threading
import time
import zlib
from typing import Any, Final

from tests.tasks.key_ranges.programs import LONG, STRING, TEXT
from tests.tasks.key_ranges.scenarios.test_stuck_calls import ranges_of
from tests.tasks.loop.group_bench import GroupBench
from tidewheel import Processor, Record, Stores, StreamsBuilder, Topology
from tidewheel.rebalance.protocol.orders import KeepCopy
from tidewheel.tasks.key_ranges.vector import VectorPart

FACTOR: Final = 16
KEYS: Final = 40
#: Keys with running calls during the move.
HELD: Final = ("held-0", "held-1")


class Work:
    """Calls of about 1 ms; those for `HELD` return after the move."""

    def __init__(self) -> None:
        self.moved = threading.Event()
        #: Started records, by number, which equals the offset.
        self.begun: list[int] = []

    def program(self) -> Topology:
        work = self

        class Count(Processor[str, str, str, int]):
            keyed = True

            def init(self, context: Any) -> None:
                super().init(context)
                self._store = context.get_state_store("counts")

            def process(self, record: Record[str, str]) -> None:
                seen = self._store.get(record.key) or 0
                work.begun.append(int(record.value))
                if record.key in HELD:
                    work.moved.wait(60)
                time.sleep(zlib.crc32(record.value.encode()) % 2_000 / 1e6)
                self._store.put(record.key, seen + 1)
                self.context.forward(record.replace(value=seen + 1))

        builder = StreamsBuilder()
        builder.add_state_store(Stores.key_value("counts", key_serde=STRING, value_serde=LONG))
        counted = builder.stream("in", **TEXT).process(Count, stores=["counts"])
        counted.to("out", key_serde=STRING, value_serde=LONG)
        return builder.build()


class Feed:
    """Sends numbered records."""

    def __init__(self, group: GroupBench) -> None:
        self._group = group
        self.keys: list[str] = []

    def send(self, *keys: str) -> None:
        for key in keys:
            self._group.send(key, str(len(self.keys)))
            self.keys.append(key)

    def many(self, count: int) -> None:
        self.send(*(f"k{number * 7919 % KEYS}" for number in range(count)))

    def counts(self) -> dict[str, list[int]]:
        return {key: list(range(1, self.keys.count(key) + 1)) for key in set(self.keys)}


def is_done(ranges: tuple[VectorPart, ...], key: str, offset: int) -> bool:
    mine = [each for each in ranges if each.first_hash <= zlib.crc32(key.encode())]
    return offset < mine[-1].offset


def test_K4_L1_a_task_moves_to_its_learner_in_the_middle_of_work_at_factor_16() -> None:
    work = Work()
    with GroupBench(work.program(), {"in": 1, "out": 1}, drain_timeout_ms=100) as group:
        feed = Feed(group)
        try:
            first, second = (group.host(name, threads=FACTOR) for name in ("a", "b"))
            first.run_task("0_0", 1)
            feed.many(300)
            first.until(lambda: group.committed() > 50, "it is under way")
            second.member.give(KeepCopy(task="0_0", role="learner", learn_epoch=1))
            feed.many(300)
            second.ready("0_0", 1)
            feed.send(*HELD)
            feed.many(300)
            held = [feed.keys.index(key) for key in HELD]
            first.until(lambda: set(held) <= set(work.begun), "calls are in hand")
            first.until(lambda: max(work.begun) > max(held) + 20, "and work goes on behind them")

            released = first.release("0_0", 1)
            begun = len(work.begun)
            done = ranges_of(group)
            assert max(released.input.values()) <= min(held)
            second.run_task("0_0", 2, released)
            work.moved.set()  # also calls of the former owner, whose results are ignored
            second.until(lambda: group.committed() == group.end(), "all is done")
        finally:
            work.moved.set()
        again = set(work.begun[:begun]).intersection(work.begun[begun:])
        assert again >= set(held)
        assert not [each for each in again if is_done(done, feed.keys[each], each)]
        assert len(work.begun) == len(feed.keys) + len(again)
        assert group.outputs() == feed.counts()
        assert set(second.read.values()) == {1}
