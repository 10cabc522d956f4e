"""Memory limits of records that wait for a stuck range."""

import threading
from typing import Any

import pytest

from tests.tasks.key_ranges.programs import TEXT
from tests.tasks.loop.group_bench import GroupBench, Host
from tidewheel import Processor, PunctuationType, Record, StreamsBuilder, Topology
from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.key_ranges.dealer import Dealer
from tidewheel.tasks.key_ranges.key_ranges import KeyRanges, key_hash
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords, memory_bytes

THREADS = 16
BOUND = 200_000
IN = TopicPartition("in", 0)
#: All in other ranges than "stuck".
KEYS = KeyRanges(tuple(number * (1 << 32) // THREADS for number in range(THREADS)))
ELSEWHERE = [
    key
    for key in map(str, range(500))
    if KEYS.index_of(key_hash(key.encode(), 0)) != KEYS.index_of(key_hash(b"stuck", 0))
]


def decoded(values: list[bytes]) -> tuple[SourceRecords, RecordBatch]:
    count = len(values)
    keys = [str(number).encode() for number in range(count)]
    headers: list[Any] = [(("row", key),) for key in keys]
    times = list(range(1_000, 1_000 + count))
    records = SourceRecords("in", 0, list(range(7, 7 + count)), keys, values, times, headers)
    texts = [key.decode() for key in keys]
    return records, RecordBatch(texts, list(values), times, headers, range(count), records)


def test_K4_a_share_keeps_only_its_records_and_counts_them_in_full() -> None:
    records, batch = decoded([b"x" * (50_000 if number == 3 else 10) for number in range(200)])
    dealer = Dealer(KEYS, None, -1)
    _, shares, _ = dealer.deal(
        "in",
        records,
        batch,
        partition=IN,
        time_before_ms=-1,
        old=None,
        letters={},
        others={},
    )
    assert len(shares) == THREADS
    found: dict[int, tuple[Any, ...]] = {}
    for share in shares:
        part = share.item.batch
        assert part is not None
        assert part.source is not None
        assert len(part.source) == len(part)
        assert (
            memory_bytes(part.source) <= share.item.size_bytes < memory_bytes(part.source) + 2_000
        )
        for index, row in enumerate(share.item.rows):
            mine = part.source
            at = part.rows[index]
            found[row] = (mine.raw_keys[at], mine.raw_values[at], part.context_of(index))
    assert found == {
        row: (records.raw_keys[row], records.raw_values[row], batch.context_of(row))
        for row in range(200)
    }


def test_K4_letters_in_between_are_counted_and_change_no_sum() -> None:
    records, batch = decoded([b"x" * 100] * 200)
    good = batch.take([row for row in range(200) if row != 90])
    letter = OutputColumns(
        topic="dead", partitions=0, keys=[b"k"], values=[b"v" * 9_000], timestamps=[0]
    )
    sums: list[int] = []
    cases: list[dict[int, list[OutputColumns]]] = [{}, {90: [letter]}]
    for letters in cases:
        _, shares, _ = Dealer(KEYS, None, -1).deal(
            "in",
            records,
            good,
            partition=IN,
            time_before_ms=-1,
            old=None,
            letters=letters,
            others={},
        )
        sums.append(sum(share.item.size_bytes for share in shares))
    assert 9_000 < sums[1] - sums[0] < 11_000


def program(released: threading.Event, *, schedules: bool) -> Topology:
    class Waits(Processor[str, str, str, str]):
        keyed = True

        def init(self, context: Any) -> None:
            super().init(context)
            if schedules:
                context.schedule(1 << 40, PunctuationType.STREAM_TIME, print)

        def process(self, record: Record[str, str]) -> None:
            if record.key == "stuck":
                released.wait(60)

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).process(Waits).to("out", **TEXT)
    return builder.build()


class Stall:
    """Condition: many loop rounds distributed nothing, although records exist."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._seen = (-1, 0)

    @property
    def task(self) -> Any:
        return next(iter(self._host.worker.tasks.values()))

    def __call__(self) -> bool:
        offset, turns = max(self.task._distributed_offsets.values()), self._host.member.turns
        if offset != self._seen[0]:
            self._seen = (offset, turns)
        return turns - self._seen[1] > 100 and self.task.group.records > 0


@pytest.mark.parametrize("schedules", [False, True], ids=["records", "times"])
def test_K4_memory_of_records_for_a_stuck_range_is_bounded(schedules: bool) -> None:
    released = threading.Event()
    with GroupBench(
        program(released, schedules=schedules),
        {"in": 1, "out": 1},
        buffered_bytes_per_partition=BOUND,
        buffered_records_per_partition=1_000_000,
    ) as group:
        try:
            host = group.host("one", threads=THREADS)
            host.run_task("0_0", 1)
            group.send("stuck")
            keys, value = (ELSEWHERE, "") if schedules else ([*ELSEWHERE, "stuck"], "x" * 400)
            for number in range(40_000):
                group.send(keys[number % len(keys)], value)
            stall = Stall(host)
            host.until(stall, "no more is handed out")
            items = [item for each in stall.task.ranges for item in each.queue]
            times = {id(item.times_ms): len(item.times_ms) for item in items}
            sources = {
                id(item.batch.source): item.batch.source for item in items if item.batch is not None
            }
            alive = 8 * sum(times.values()) + sum(map(memory_bytes, sources.values()))
            assert alive < BOUND * 2
            assert stall.task._buffered_bytes() >= BOUND
            assert alive <= stall.task._buffered_bytes()
        finally:
            released.set()
        host.until(lambda: group.committed() == group.end(), "all is done")
        assert stall.task._buffered_bytes() == 0
