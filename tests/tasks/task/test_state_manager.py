"""State manager: stores open, commit and close together; positions never lead the data."""

from collections.abc import Mapping
from typing import Any

import pytest

from tidewheel import Serdes, TaskCorruptedError
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.errors import InvalidStateStoreError, StoreCorruptedError
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import fold
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.state_stores.stores.key_value_store import TimestampedKeyValueStore
from tidewheel.tasks.task.state_manager import StateManager, StateSettings

TOPIC_ID = b"sixteen byte id."


def spec(name: str, **changes: Any) -> StoreSpec:
    return StoreSpec(
        **{
            "name": name,
            "kind": StoreKind.KEY_VALUE,
            "key_serde": Serdes.string(),
            "value_serde": Serdes.int64(),
            **changes,
        }
    )


class RecordedDatabase(InMemoryDatabase):
    """Records every write."""

    def __init__(self, families: list[str]) -> None:
        super().__init__(families)
        self.families = families
        self.writes: list[tuple[dict[str, Any], dict[str, bytes]]] = []
        self.closed = 0

    def write(self, changes: Any, positions: Any, *, delete_ranges: Any = None) -> None:
        self.writes.append((dict(changes), dict(positions)))
        super().write(changes, positions, delete_ranges=delete_ranges)

    def close(self) -> None:
        self.closed += 1
        super().close()


class Stage:
    """An open state manager over recorded databases."""

    def __init__(
        self, *specs: StoreSpec, read_cache_bytes: int = 1 << 20, cache_enabled: bool = False
    ) -> None:
        self.disk: RecordedDatabase | None = None
        self.memory: RecordedDatabase | None = None
        self.manager = StateManager(
            TaskId(0, 2),
            specs,
            StateSettings(
                application_id="app",
                cache_enabled=cache_enabled,
                read_cache_bytes_per_store=read_cache_bytes,
            ),
            open_persistent=self.open_persistent,
            open_in_memory=self.open_in_memory,
            now=lambda: 77,
        )
        self.manager.open()
        self.manager.topic_ids = {
            changelog.topic: TOPIC_ID for changelog in self.manager.changelogs
        }

    @property
    def stores(self) -> Mapping[str, Any]:
        return self.manager.stores

    def open_persistent(self, families: list[str]) -> RecordedDatabase:
        self.disk = RecordedDatabase(families)
        return self.disk

    def open_in_memory(self, families: list[str]) -> RecordedDatabase:
        self.memory = RecordedDatabase(families)
        return self.memory


def changelog(store: str) -> TopicPartition:
    return TopicPartition(f"app-{store}-changelog", 2)


def test_persistent_and_in_memory_stores_have_separate_databases() -> None:
    stage = Stage(spec("b"), spec("m", persistent=False), spec("a"))
    assert stage.disk is not None
    assert stage.memory is not None
    assert (stage.disk.families, stage.memory.families) == (["a", "b"], ["m"])
    assert Stage(spec("m", persistent=False)).disk is None
    assert Stage(spec("a")).memory is None
    assert Stage().manager.drain() == {}


def test_a_commit_is_one_write_per_database_with_its_own_positions() -> None:
    stage = Stage(spec("a"), spec("b"), spec("m", persistent=False), spec("silent", logging=False))
    for name, store in stage.stores.items():
        if name != "b":
            store.put("k", 1)
    drained = stage.manager.drain()
    assert set(drained) == {"a", "m", "silent"}
    assert stage.manager.uncommitted_bytes > 0
    positions = {changelog("a"): 10, changelog("m"): 20, TopicPartition("other", 2): 30}
    stage.manager.apply(drained, positions, now_ms=5)
    assert stage.disk is not None
    assert stage.memory is not None
    ((changes, stored),) = stage.disk.writes
    assert set(changes) == {"a", "silent"}
    assert set(stored) == {"changelog:app-a-changelog-2"}
    ((changes, stored),) = stage.memory.writes
    assert (set(changes), set(stored)) == ({"m"}, {"changelog:app-m-changelog-2"})
    assert stage.manager.position("a") == Position(offset=10, topic_id=TOPIC_ID, written_at_ms=5)
    assert stage.manager.position("b") is None
    assert stage.manager.position("silent") is None
    assert stage.manager.uncommitted_bytes == 0
    assert stage.manager.drain() == {}


def test_without_changes_no_write_is_made() -> None:
    stage = Stage(spec("a"))
    stage.manager.apply({}, {TopicPartition("other", 2): 30}, now_ms=5)
    assert stage.disk is not None
    assert stage.disk.writes == []


def test_changes_made_after_the_drain_stay_for_the_next_commit() -> None:
    stage = Stage(spec("a"), spec("b"))
    stage.stores["a"].put("k", 1)
    drained = stage.manager.drain()
    stage.stores["b"].put("k", 2)
    stage.manager.apply(drained, {}, now_ms=5)
    assert set(stage.manager.drain()) == {"b"}


def test_stores_that_are_only_read_keep_their_budget() -> None:
    stage = Stage(spec("read"), spec("written"), read_cache_bytes=20_000)
    read, written = stage.stores["read"], stage.stores["written"]
    for number in range(2_000):
        read.get(str(number))
        if number % 50 == 0:
            written.put("k", number)
            stage.manager.apply(stage.manager.drain(), {}, now_ms=5)
    assert len(read.buffer.values) + len(read.buffer._old.timestamps) < 300


def test_forget_clears_the_position_first() -> None:
    stage = Stage(spec("a"), spec("b"))
    for store in stage.stores.values():
        store.put("k", 1)
    stage.manager.apply(stage.manager.drain(), {changelog("a"): 10, changelog("b"): 10}, now_ms=5)
    assert stage.disk is not None
    steps: list[str] = []
    disk: Any = stage.disk
    clear, write = disk.clear, disk.write

    def recording_clear(family: str) -> None:
        steps.append("clear")
        clear(family)

    def recording_write(changes: Any, positions: Any) -> None:
        steps.append("write")
        write(changes, positions)

    disk.clear, disk.write = recording_clear, recording_write
    stage.manager.forget("a")
    assert steps == ["write", "clear"]
    assert stage.manager.position("a") is None
    assert stage.manager.position("b") is not None
    stage.stores["a"].buffer.discard()
    assert stage.stores["a"].get("k") is None
    assert stage.stores["b"].get("k") == 1


def test_stores_are_of_their_kind() -> None:
    timestamped = spec("t", kind=StoreKind.TIMESTAMPED_KEY_VALUE, caching=True)
    for enabled in (False, True):
        stage = Stage(timestamped, spec("plain"), cache_enabled=enabled)
        assert isinstance(stage.stores["t"], TimestampedKeyValueStore)
        assert (stage.stores["t"].open_cache() is not None) == enabled
        assert stage.stores["plain"].open_cache() is None


def test_changelogs_are_those_of_logged_stores() -> None:
    stage = Stage(spec("a"), spec("silent", logging=False))
    assert stage.manager.changelogs == {changelog("a"): "a"}
    assert stage.manager.changelog("silent") is None


def test_close_discards_uncommitted_changes() -> None:
    stage = Stage(spec("a"), spec("m", persistent=False))
    kept = stage.stores["a"]
    kept.put("k", 1)
    stage.manager.close()
    stage.manager.close()
    assert stage.disk is not None
    assert stage.memory is not None
    assert (stage.disk.closed, stage.memory.closed) == (1, 1)
    with pytest.raises(InvalidStateStoreError):
        kept.get("other")


def test_damage_is_raised_with_its_task() -> None:
    stage = Stage(spec("a"))
    assert stage.disk is not None
    stage.disk.write({"a": [(b"k", b"\x00damaged")]}, {})
    with pytest.raises(TaskCorruptedError, match="0_2") as caught, stage.manager.trusted():
        stage.stores["a"].get("k")
    assert caught.value.task_id == "0_2"
    assert isinstance(caught.value.__cause__, StoreCorruptedError)


def window_spec(name: str, **changes: Any) -> StoreSpec:
    return spec(name, kind=StoreKind.WINDOW, retention_ms=60_000, window_size_ms=10, **changes)


def test_a_restored_store_continues_with_its_time() -> None:
    stage = Stage(window_spec("w"))
    store: Any = stage.stores["w"]
    for start in (0, 70_000, 140_000):
        store.put("k", start, start)
    drained = stage.manager.drain()
    stage.manager.apply(drained, {changelog("w"): 3}, now_ms=5)
    restored_stage = Stage(window_spec("w"))
    changes = drained["w"]
    rows = fold(window_spec("w"), changes.keys, changes.values, changes.timestamps)
    restored_stage.manager.write_restored({"w": rows}, {changelog("w"): 3}, now_ms=5)
    assert restored_stage.disk is not None
    ((_, stored),) = restored_stage.disk.writes
    assert set(stored) == {"changelog:app-w-changelog-2", "stream-time:w"}
    restored: Any = restored_stage.manager.stores["w"]
    assert list(restored.fetch("k", 0, 1 << 62)) == list(store.fetch("k", 0, 1 << 62))
    assert list(restored.fetch("k", 0, 1 << 62)) == [(140_000, 140_000)]
    assert restored.times() == (140_000,)
    restored.put("k", 1, 0)
    assert restored_stage.manager.expired_puts == 1


def test_a_forgotten_store_has_seen_no_time() -> None:
    stage = Stage(window_spec("w"))
    store: Any = stage.stores["w"]
    store.put("k", 1, 500_000)
    stage.manager.apply(stage.manager.drain(), {changelog("w"): 1}, now_ms=5)
    assert store.is_expired(0)
    stage.manager.forget("w")
    assert store.observed_stream_time_ms == -1
    assert list(store.all()) == []
    assert stage.manager.position("w") is None


def test_expired_rows_are_drained_without_a_put() -> None:
    stage = Stage(spec("t", ttl_ms=10))
    store: Any = stage.stores["t"]
    store.put("k", 1)
    stage.manager.apply(stage.manager.drain(), {changelog("t"): 1}, now_ms=5)
    assert stage.manager.drain() == {}
    store.buffer.observe(87)
    drained = stage.manager.drain()
    assert (drained["t"].keys, drained["t"].values, drained["t"].timestamps) == (
        [b"k"],
        [None],
        [87],
    )


# -- a commit in progress ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_stores_see_staged_changes(*, persistent: bool) -> None:
    stage = Stage(spec("a", persistent=persistent), read_cache_bytes=0)
    store = stage.stores["a"]
    for key, value in (("gone", 1), ("k", 1), ("same", 1)):
        store.put(key, value)
    stage.manager.apply(stage.manager.drain(), {}, now_ms=5)
    assert (store.get("k"), store.get("gone")) == (1, 1)
    store.put("k", 2)
    store.delete("gone")
    assert len(store) == 2
    drained = stage.manager.drain()
    stage.manager.stage(drained)
    assert stage.manager.drain() == {}
    database = stage.manager.database("a")
    assert len(list(database.iterate("a", None, None))) == 3
    assert (store.get("k"), store.get("gone"), store.get("same")) == (2, None, 1)
    assert list(store.all()) == [("k", 2), ("same", 1)]
    assert len(store) == 2
    store.put("k", 3)
    store.put("new", 1)
    stage.manager.apply(drained, {changelog("a"): 7}, now_ms=6)
    assert len(list(database.iterate("a", None, None))) == 2
    assert (store.get("k"), store.get("new")) == (3, 1)
    position = stage.manager.position("a")
    assert position is not None
    assert position.offset == 7
    assert [len(changes.keys) for changes in stage.manager.drain().values()] == [2]


def test_renew_discards_staged_changes() -> None:
    stage = Stage(spec("a"))
    stage.stores["a"].put("k", 1)
    stage.manager.stage(stage.manager.drain())
    stage.manager.renew(lambda: 78)
    assert stage.stores["a"].get("k") is None
    stage.stores["a"].put("k", 2)
    stage.manager.apply(stage.manager.drain(), {}, now_ms=5)
    assert stage.stores["a"].get("k") == 2


def test_segments_that_expire_without_a_change_are_deleted_with_the_next_one() -> None:
    windows = spec("a", kind=StoreKind.WINDOW, window_size_ms=10_000, retention_ms=150_000)
    stage = Stage(windows)
    store = stage.stores["a"]

    def commit() -> None:
        stage.manager.apply(stage.manager.drain(), {}, now_ms=5)

    store.put("k", 1, 0)
    commit()
    assert list(store.fetch("k", 0, 10))
    store.buffer.observe(2_000_000)
    commit()
    store.put("k", 2, 2_000_000)
    commit()
    assert len(list(stage.manager.database("a").iterate("a", None, None))) == 1
