"""Positions of real databases that a joining worker reports."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidewheel.rebalance.model import TaskId, TaskShape
from tidewheel.rebalance.protocol.messages import DiskCopy
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import position_name
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.streams.worker.state_on_disk import state_on_disk
from tidewheel.tasks.kafka.ports import TopicDescription

NOW_MS = 1_000_000_000
COUNTS, SUMS = "shop-counts-changelog", "shop-sums-changelog"
#: Present topic ids; others belong to deleted topics.
IDS = {COUNTS: b"c" * 16, SUMS: b"s" * 16}
STATEFUL = TaskShape(stateful=True, changelogs=(COUNTS, SUMS))
SHAPES = {TaskId(0, number): STATEFUL for number in range(4)} | {
    TaskId(1, 0): TaskShape(stateful=False)
}


@dataclass(slots=True)
class Topics:
    ids: dict[str, bytes] = field(default_factory=lambda: dict(IDS))
    asked: int = 0

    def describe_topics(
        self, names: Sequence[str], *, config: Sequence[str] = ()
    ) -> dict[str, TopicDescription]:
        """Tombstones live for a day."""
        self.asked += 1
        assert "delete.retention.ms" in config
        return {
            name: TopicDescription(
                name=name,
                partitions=4,
                topic_id=self.ids[name],
                config={"delete.retention.ms": "86400000"},
            )
            for name in names
            if name in self.ids
        }


@pytest.fixture
def slot(tmp_path: Path) -> StateDirectory:
    return StateDirectory.acquire(tmp_path, "shop")


def keep(slot: StateDirectory, task: str, **offsets: int | Position) -> None:
    """Create a closed database of a task with these positions."""
    options = RocksDBOptions()
    database = TaskDatabase.open(
        slot.task_directory(task), ["counts", "sums"], options, SharedResources.create(options)
    )
    partition = int(task.rpartition("_")[2])
    positions = {
        position_name(f"shop-{store}-changelog", partition): (
            at
            if isinstance(at, Position)
            else Position(offset=at, topic_id=IDS[f"shop-{store}-changelog"], written_at_ms=NOW_MS)
        ).encode()
        for store, at in offsets.items()
    }
    database.write({}, positions | {"store-uuid": b"u"})
    database.close()


def said(slot: StateDirectory, topics: Topics | None = None) -> tuple[DiskCopy, ...]:
    return state_on_disk(slot, SHAPES, topics or Topics(), TaskDatabase.positions_in, NOW_MS)


def test_each_task_with_state_is_reported_with_its_positions(slot: StateDirectory) -> None:
    keep(slot, "0_1", counts=7, sums=3)
    keep(slot, "0_3", counts=12)
    both = (
        DiskCopy(task="0_1", positions={f"{COUNTS}-1": 7, f"{SUMS}-1": 3}),
        DiskCopy(task="0_3", positions={f"{COUNTS}-3": 12}),
    )
    assert said(slot) == both
    assert said(slot) == both, "reading changes nothing"
    keep(slot, "0_3", counts=13)
    assert said(slot)[1] == DiskCopy(task="0_3", positions={f"{COUNTS}-3": 13})


def test_positions_that_a_restore_would_not_use_are_not_reported(slot: StateDirectory) -> None:
    keep(slot, "0_0", counts=Position(offset=7, topic_id=b"o" * 16, written_at_ms=NOW_MS), sums=3)
    old = Position(offset=7, topic_id=IDS[COUNTS], written_at_ms=NOW_MS - 86_400_000)
    keep(slot, "0_1", counts=old)
    keep(slot, "0_2")
    assert said(slot) == (DiskCopy(task="0_0", positions={f"{SUMS}-0": 3}),)
    assert said(slot, Topics(ids={})) == (), "the changelogs are gone"


def test_directories_without_state_are_not_reported(slot: StateDirectory) -> None:
    topics = Topics()
    slot.task_directory("0_1")
    keep(slot, "1_0", counts=7)
    keep(slot, "0_9", counts=7)
    assert said(slot, topics) == ()
    slot.remove_task_directory("0_1")
    topics.asked = 0
    assert said(slot, topics) == ()
    assert not topics.asked, "with nothing on disk there is nothing to ask"


def test_files_of_a_custom_store_are_reported_without_a_position(
    slot: StateDirectory,
) -> None:
    (slot.task_directory("0_1") / "own.db").write_bytes(b"x")
    assert said(slot) == (DiskCopy(task="0_1"),)


def test_a_damaged_database_is_skipped_with_a_warning(
    slot: StateDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    keep(slot, "0_0", counts=7)
    keep(slot, "0_1", counts=7)
    for manifest in slot.task_directory("0_0").glob("MANIFEST-*"):
        manifest.write_bytes(b"\xff" * 64)
    assert said(slot) == (DiskCopy(task="0_1", positions={f"{COUNTS}-1": 7}),)
    assert "can't read the positions of task 0_0" in caplog.text
