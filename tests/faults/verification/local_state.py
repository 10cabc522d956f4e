"""Databases of ended workers, compared with the changelog of their store."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.integration.cluster import Cluster, Received
from tests.integration.programs.jobs import STORE
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import position_name
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.state_directory import StateDirectory

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Copy:
    """A task's rows on one disk, with all changes before `offset` of the changelog."""

    path: Path
    offset: int
    rows: Mapping[bytes, bytes]


def local_differences(
    cluster: Cluster, application_id: str, state_dirs: Iterable[Path]
) -> Iterator[str]:
    """Yield the keys of each copy that differ from the changelog up to the copy's position.

    Old copies of tasks that moved away are compared too. The last owner's copy must be complete.
    """
    topic = f"{application_id}-{STORE}-changelog"
    logs: defaultdict[int, list[Received]] = defaultdict(list)
    for record in cluster.read(topic):
        logs[record.partition].append(record)
    copies = _copies(topic, application_id, state_dirs)
    for partition, log in logs.items():
        for copy in copies[partition]:
            yield from _differences(copy, log)
        newest = max((copy.offset for copy in copies[partition]), default=0)
        if newest <= log[-1].offset:
            yield f"{topic}-{partition}: no copy has offset {log[-1].offset}, the newest is at {newest}"


def _copies(
    topic: str, application_id: str, state_dirs: Iterable[Path]
) -> Mapping[int, Sequence[Copy]]:
    copies: defaultdict[int, list[Copy]] = defaultdict(list)
    for state_dir in state_dirs:
        for entry in sorted((state_dir / application_id).glob("[0-9]*")):
            with StateDirectory.acquire(state_dir, application_id, slot=int(entry.name)) as slot:
                for task in slot.tasks():
                    partition = int(task.rpartition("_")[2])
                    copies[partition] += _copy(TopicPartition(topic, partition), entry / task)
    return copies


def _copy(changelog: TopicPartition, path: Path) -> Iterator[Copy]:
    stored = TaskDatabase.positions_in(path).get(position_name(*changelog))
    position = Position.decode(stored)
    if position is None:  # of another subtopology, or with nothing restored yet
        return
    options = RocksDBOptions()
    resources = SharedResources.create(options)
    with closing(TaskDatabase.open(path, [STORE], options, resources)) as database:
        stored_rows = database.iterate(STORE, None, None)
        rows = {key: bytes(unwrap_value(value)[0]) for key, value in stored_rows}
    yield Copy(path, position.offset, rows)


def _differences(copy: Copy, log: Sequence[Received]) -> Iterator[str]:
    """Yield the keys whose rows are wrong.

    A position is a lower bound: a commit whose records the brokers have not confirmed one by one
    writes its rows and keeps the earlier position. So a key that changed later may have a later
    value.
    """
    last = {record.key: record.value for record in log if record.offset < copy.offset}
    expected = {key: value for key, value in last.items() if value is not None}
    later = {(record.key, record.value) for record in log if record.offset >= copy.offset}
    keys = [
        key
        for key in expected.keys() | copy.rows.keys()
        if expected.get(key) != copy.rows.get(key) and (key, copy.rows.get(key)) not in later
    ]
    for key in sorted(keys)[:_SHOWN]:
        yield (
            f"{copy.path} at {copy.offset}: {key!r} is {copy.rows.get(key)!r}, "
            f"not {expected.get(key)!r}; {len(keys)} keys differ"
        )
