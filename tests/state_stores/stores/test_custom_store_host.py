"""Slot of a user's own store in its task: initial content, and reasons to clear it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tasks.task.custom_stores import KeptTotals, Totals
from tidewheel import Serdes, StateStore
from tidewheel.state_stores.errors import StateStoreError
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import fold
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.state_stores.stores.custom_store_host import (
    ChangeBuffer,
    CustomStoreHost,
    user_object,
)

TOPIC = b"sixteen byte id."
OTHER = b"another topic id"


def slot_of(
    make: Callable[[], object], directory: Path, *, logging: bool = True
) -> CustomStoreHost:
    serde = Serdes.bytes()
    return CustomStoreHost(
        StoreSpec(
            name="totals", kind=StoreKind.CUSTOM, key_serde=serde, value_serde=serde, make=make
        ),
        task_id="0_0",
        directory=directory,
        changelog=("changelog", 0) if logging else None,
        now=lambda: 7,
    )


def at(offset: int, *, topic: bytes = TOPIC, now_ms: int = 0) -> Position:
    return Position(offset=offset, topic_id=topic, written_at_ms=now_ms)


def counted(slot: CustomStoreHost, keys: str) -> Totals:
    store = slot.store.users
    assert isinstance(store, Totals)
    for key in keys:
        store.add(key)
    return store


def test_the_last_change_of_a_key_counts() -> None:
    buffer = ChangeBuffer()
    for key, value in [(b"a", b"1"), (b"b", b"22"), (b"a", None)]:
        buffer.put(key, value, len(value or b""))
    drained = buffer.drain()
    assert (drained.keys, drained.values, drained.timestamps) == (
        [b"b", b"a"],
        [b"22", None],
        [2, 0],
    )
    assert list(drained.stored) == []
    assert buffer.uncommitted_bytes == 404
    assert buffer.has_changes()
    buffer.applied()
    assert (buffer.has_changes(), buffer.uncommitted_bytes) == (False, 0)


def test_a_restarted_task_gets_no_uncommitted_changes(tmp_path: Path) -> None:
    slot = slot_of(Totals, tmp_path)
    store = counted(slot, "a")
    slot.store.buffer.applied()
    slot.commit(at(3))
    assert user_object(slot.begin(lambda: 8)) is store
    counted(slot, "a")
    fresh = user_object(slot.begin(lambda: 9))
    assert fresh is not store
    assert (fresh.totals, store.closed, slot.position) == ({}, 1, None)
    assert not slot.store.buffer.has_changes()
    fresh.add("a")
    assert slot.store.buffer.drain().timestamps == [9]


def test_committed_content_is_restored(tmp_path: Path) -> None:
    slot = slot_of(KeptTotals, tmp_path)
    counted(slot, "ab")
    slot.commit(at(3, now_ms=1_000))
    slot.commit(at(9, now_ms=2_000))
    slot.close()
    again = slot_of(KeptTotals, tmp_path)
    assert again.position == at(9, now_ms=1_000)
    again.commit(at(12, now_ms=61_000))
    assert slot_of(KeptTotals, tmp_path).position == at(12, now_ms=61_000)


@pytest.mark.parametrize("topic", [TOPIC, OTHER])
def test_forgetting_leaves_no_content(topic: bytes, tmp_path: Path) -> None:
    slot = slot_of(KeptTotals, tmp_path)
    counted(slot, "a")
    slot.commit(at(3))
    identity = slot.identity
    slot.forget()
    assert (slot.position, counted(slot, "").totals) == (None, {})
    assert slot.identity != identity
    slot.commit(at(1, topic=topic))
    assert slot_of(KeptTotals, tmp_path).position == at(1, topic=topic)


def test_a_store_is_closed_before_its_files_are_deleted(tmp_path: Path) -> None:
    class Closing(KeptTotals):
        def close(self) -> None:
            super().close()
            assert (self.context.state_dir / "totals.json").exists()

    slot = slot_of(Closing, tmp_path)
    slot.commit(at(3))
    slot.forget()
    assert not list(slot.place().iterdir())


def test_a_restored_old_file_makes_the_position_invalid(tmp_path: Path) -> None:
    slot = slot_of(KeptTotals, tmp_path)
    counted(slot, "a")
    slot.commit(at(3))
    kept = slot.place() / "totals.json"
    before = kept.read_bytes()
    slot.commit(at(9, now_ms=60_000))
    kept.write_bytes(before)
    assert slot_of(KeptTotals, tmp_path).position is None


def test_files_without_a_position_are_not_used(tmp_path: Path) -> None:
    slot = slot_of(KeptTotals, tmp_path)
    counted(slot, "a")
    slot.commit(at(3))
    (tmp_path / "custom-totals" / "position").unlink()
    again = slot_of(KeptTotals, tmp_path)
    assert (again.position, counted(again, "").totals) == (None, {})


def test_a_store_without_a_changelog_keeps_its_files(tmp_path: Path) -> None:
    slot = slot_of(KeptTotals, tmp_path, logging=False)
    counted(slot, "a")
    slot.commit(None)
    assert counted(slot_of(KeptTotals, tmp_path, logging=False), "").totals == {"a": 1}


def test_a_custom_store_gets_the_changelog_records_unchanged(tmp_path: Path) -> None:
    slot = slot_of(Totals, tmp_path)
    records = [(b"a", b"1", 5), (None, b"x", 6), (b"a", None, 7), (b"b", b"", 8)]
    spec = StoreSpec(
        name="totals",
        kind=StoreKind.CUSTOM,
        key_serde=Serdes.bytes(),
        value_serde=Serdes.bytes(),
    )
    rows = fold(
        spec,
        [key for key, _, _ in records],
        [value for _, value, _ in records],
        [time for _, _, time in records],
    )
    with pytest.raises(StateStoreError, match=r"store totals of task 0_0: restore failed.*int\(\)"):
        slot.restore(rows)
    assert counted(slot, "").restored == [(b"a", b"1", 5), (b"a", None, 7), (b"b", b"", 8)]


def test_a_failing_store_factory_is_reported(tmp_path: Path) -> None:
    def fails() -> StateStore:
        raise OSError("no memory")

    with pytest.raises(StateStoreError, match="being made failed: OSError: no memory"):
        slot_of(fails, tmp_path)
    with pytest.raises(StateStoreError, match="returned an object of type int"):
        slot_of(lambda: 5, tmp_path)


@pytest.mark.parametrize("damage", ["directory", "pipe", "link", "link to its folder"])
def test_a_position_that_is_no_file_is_absent(tmp_path: Path, damage: str) -> None:
    slot = slot_of(KeptTotals, tmp_path)
    counted(slot, "a")
    slot.commit(at(3))
    slot.close()
    root = tmp_path / "custom-totals"
    position = root / "position"
    if damage == "link to its folder":
        root.rename(tmp_path / "elsewhere")
        root.symlink_to(tmp_path / "elsewhere")
    else:
        position.rename(tmp_path / "aside")
    match damage:
        case "directory":
            position.mkdir()
        case "pipe":
            os.mkfifo(position)
        case "link":
            position.symlink_to(tmp_path / "aside")
        case _:
            pass
    again = slot_of(KeptTotals, tmp_path)
    assert (again.position, counted(again, "").totals) == (None, {})
    assert not root.is_symlink()


def test_files_behind_a_link_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "custom-totals").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateStoreError, match="leads through a link"):
        slot_of(KeptTotals, tmp_path, logging=False)
    assert list((tmp_path / "elsewhere").iterdir()) == []
