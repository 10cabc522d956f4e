"""Store time after a replay."""

from types import SimpleNamespace
from typing import Any, cast

from tests.tasks.task.test_state_manager import Stage, spec
from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.store_restore import StoreRestore

CHANGELOG = TopicPartition("app-t-changelog", 2)


def test_deletes_and_overwritten_rows_advance_the_time_of_a_store_with_a_ttl() -> None:
    for value in (None, b"\0" * 8):
        stage = Stage(spec("t", ttl_ms=50))
        restore = StoreRestore(
            task=cast("Any", SimpleNamespace(stores=stage.manager)),
            store="t",
            partition=CHANGELOG,
            start=0,
            position=0,
            end=3,
            known_ms=0,
            milestone=3,
        )
        for offset, (key, data, timestamp) in enumerate(
            [(b"a", b"\0" * 8, 100), (b"b", value, 160), (b"b", b"\0" * 8, 120)]
        ):
            restore.apply(SourceRecords(*CHANGELOG, [offset], [key], [data], [timestamp], None))
        store: Any = stage.manager.stores["t"]
        assert store.get("a") is None
        assert store.get("b") == 0
