"""A task with key ranges that no thread works on: a test takes their turns."""

from collections.abc import Mapping

from rebalance.model import TaskId, TopicPartition
from streams import Topology
from tasks.lifecycle import TaskState
from tasks.parallel.cut import Cut
from tasks.parallel.key_ranges import KeyRanges, key_hash
from tasks.parallel.progress_vector import RangeProgress
from tasks.parallel.skipping import OldMap
from tasks.ranges.parallel_task import ParallelTask
from tasks.ranges.range_pool import RangePool
from tests.tasks.bench import Bench
from tests.tasks.outputs import collector_of

#: Keys of the first and of the second half of the hashes, in whichever order.
HALVES = KeyRanges.even(2)


def halves(offsets: Mapping[bytes, int]) -> OldMap:
    """Return how far two ranges were, by a key of each."""
    of_ranges = {HALVES.index_of(key_hash(key, 0)): offset for key, offset in offsets.items()}
    firsts = HALVES.first_hashes
    return OldMap(tuple(RangeProgress(firsts[each], of_ranges[each]) for each in (0, 1)))


def begun(topology: Topology, old_maps: Mapping[TopicPartition, OldMap]) -> ParallelTask:
    """Return a running task of two ranges whose inputs begin at offset 0."""
    topics = {partition.topic: 1 for partition in old_maps}
    bench = Bench(topology, {**topics, "out": 1})
    collector = collector_of()
    assert collector.policy is not None
    worker = bench.make_worker(threads=2)
    task = worker._make_task(TaskId(0, 0), collector, collector.policy)
    assert isinstance(task, ParallelTask)
    task.join(RangePool(0), HALVES, 10)
    task.move_to(TaskState.RESTORING)
    task.stores.open()
    task.start(dict.fromkeys(old_maps, 0), {}, (), old_maps)
    return task


def work(task: ParallelTask, key: bytes) -> None:
    """Have the range of a key do what it was given, and seal it."""
    mine = task.ranges[HALVES.index_of(key_hash(key, 0))]
    mine.cut(Cut([mine]))
    mine.turn(others_wait=lambda: False, alone=lambda: False)
    assert mine.error is None
