"""Workers of a group die between two steps of a commit."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from sys import maxsize
from typing import Final

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import FaultRun, incarnations
from tests.integration.cluster import PATIENCE_S
from tests.integration.processes import WorkerProcess, numbered, owned
from tests.integration.programs.jobs import STORE
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import position_name
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.tasks.kafka.internal_topics import changelog_topic

pytestmark = [pytest.mark.timeout(600), pytest.mark.broker, pytest.mark.slow]

#: Commits of the doomed worker, with the one in which it dies.
_NTH: Final = 5
#: Records before a clean stop.
_STORED: Final = 40_000
#: Seconds in which a read of undecided offsets has no answer.
_UNANSWERED_S: Final = 2.0


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("before_flush", marks=pytest.mark.fault("1")),
        pytest.param("before_offsets", marks=pytest.mark.fault("2")),
        pytest.param("before_commit", marks=pytest.mark.fault("3")),
    ],
)
def test_next_owner_starts_at_the_offsets_before_an_unfinished_commit(
    make_run: MakeRun, point: str, record_property: Callable[..., None]
) -> None:
    run = make_run()
    doomed = _stop_in_a_commit(run, point)
    partitions, processed = owned(doomed), numbered(doomed, "position")
    old = run.committed(partitions)
    assert any(processed[each] > old[each] for each in partitions), "its transaction has records"
    if point == "before_commit":
        with _reading_waits(run, partitions):
            run.kill("c")
    else:
        run.kill("c")
    record_property("recovery_s", run.until_owned())
    owners = run.owners()
    starts = {each: numbered(run.workers[owners[each][0]], "start")[each] for each in partitions}
    assert starts == old
    assert {*incarnations(doomed)} <= run.trace().fenced(), "`verify` finds the fence before grants"
    run.until_progress()
    run.start("c")
    run.until_shared()
    run.verify()


@pytest.mark.fault("5")
@pytest.mark.parametrize("point", ["after_commit", "before_apply"])
def test_restart_replays_the_end_of_the_changelog(
    make_run: MakeRun, point: str, record_property: Callable[..., None]
) -> None:
    run = make_run(is_static=True, rate=500)  # its tasks wait for it
    run.begin()
    run.cluster.send(run.source, [(b"key-%05d" % each, b"x") for each in range(_STORED)])
    run.until_progress()
    partitions = owned(run.workers["c"])
    run.leave("c")  # its stores are on disk
    _start_doomed(run, point)
    run.kill("c")
    stored = {each: _stored_position(run, each) for each in partitions}
    committed = run.cluster.read(_changelog(run))
    tails = Counter(
        each.partition for each in committed if each.offset >= stored.get(each.partition, maxsize)
    )
    assert tails, "the stores lack a commit below the last stable offset"

    returned = run.start("c")
    record_property("recovery_s", run.until_owned())
    assert owned(returned) == partitions
    starts, restored = numbered(returned, "restore-from"), numbered(returned, "restored")
    for partition, tail in tails.items():
        assert starts[partition] == stored[partition]
        assert restored[partition] == tail
        assert tail < stored[partition] / 2, "most rows were on its disk"
    record_property("replayed", sum(restored.values()))
    run.until_progress()
    run.verify()


def _stop_in_a_commit(run: FaultRun, point: str) -> WorkerProcess:
    run.begin("ab")
    return _start_doomed(run, point)


def _start_doomed(run: FaultRun, point: str) -> WorkerProcess:
    doomed = run.start("c", failpoints=f"{point}:{_NTH}:stop")
    assert run.until_one_stops() == "c"
    return doomed


@contextmanager
def _reading_waits(run: FaultRun, partitions: Iterable[int]) -> Iterator[None]:
    """Read offsets as the next owner does; only what happens inside lets the read return."""
    inputs = [TopicPartition(run.source, number) for number in partitions]
    with ThreadPoolExecutor(1) as pool, closing(run.cluster.clients.admin()) as admin:
        reading = pool.submit(admin.committed, run.application_id, inputs, stable=True)
        with pytest.raises(TimeoutError):
            reading.result(_UNANSWERED_S)
        yield
        assert len(reading.result(PATIENCE_S)) == len(inputs)


def _changelog(run: FaultRun) -> str:
    return changelog_topic(run.application_id, STORE)


def _stored_position(run: FaultRun, partition: int) -> int:
    """Return the position of a changelog in the store of the dead worker c."""
    (folder,) = (run.folder / "state-c" / run.application_id).glob(f"*/0_{partition}")
    stored = TaskDatabase.positions_in(folder)[position_name(_changelog(run), partition)]
    position = Position.decode(stored)
    assert position is not None
    return position.offset
