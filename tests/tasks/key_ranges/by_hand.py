"""Task with key ranges and without threads: the test runs the turns."""

from collections.abc import Collection, Mapping

from tests.tasks.loop.bench import Bench
from tests.tasks.task.outputs import collector_of
from tidewheel import Topology
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.key_ranges.key_ranges import KeyRanges, key_hash
from tidewheel.tasks.key_ranges.range_pool import RangePool
from tidewheel.tasks.key_ranges.sealed_work import SealBarrier
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.task.lifecycle import TaskState
from tidewheel.tasks.task.parallel_task import ParallelTask
from tidewheel.tasks.task.task import Task

#: Keys of the first and of the second half of the hashes, in whichever order.
HALVES = KeyRanges.even(2)


def halves(offsets: Mapping[bytes, int]) -> Vector:
    of_ranges = {HALVES.index_of(key_hash(key, 0)): offset for key, offset in offsets.items()}
    firsts = HALVES.first_hashes
    return Vector(firsts, (of_ranges[0], of_ranges[1]))


def begun(topology: Topology, old_maps: Mapping[TopicPartition, Vector]) -> ParallelTask:
    task = _begun(topology, old_maps, threads=2)
    assert isinstance(task, ParallelTask)
    return task


def begun_whole(topology: Topology, inputs: Collection[TopicPartition]) -> Task:
    at_the_begin = Vector.at(0)
    return _begun(topology, dict.fromkeys(inputs, at_the_begin), threads=1)


def _begun(topology: Topology, old_maps: Mapping[TopicPartition, Vector], *, threads: int) -> Task:
    topics = {partition.topic: 1 for partition in old_maps}
    bench = Bench(topology, {**topics, "out": 1})
    collector = collector_of()
    assert collector.policy is not None
    worker = bench.make_worker(threads=threads)
    task = worker._hooks.make_task(TaskId(0, 0), collector, collector.policy)
    if isinstance(task, ParallelTask):
        task.set_ranges(RangePool(0), HALVES, 10)
    task.life.cycle.move_to(TaskState.RESTORING)
    task.stores.open()
    task.start(dict.fromkeys(old_maps, 0), {}, (), old_maps)
    return task


def work(task: ParallelTask, key: bytes) -> None:
    mine = task.ranges[HALVES.index_of(key_hash(key, 0))]
    mine.request_seal(SealBarrier([mine]))
    mine.turn(others_wait=lambda: False, alone=lambda: False)
    assert mine.error is None


def end(task: Task) -> None:
    if isinstance(task, ParallelTask):
        pool = RangePool(2)
        task.set_ranges(pool, HALVES, 10)
        task.life.close()
        pool.close()
    else:
        task.life.close()
