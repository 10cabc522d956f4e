"""Local databases in `verify-state`."""

from pathlib import Path

from tests.state_stores.bulk_restore.logs import SPECS
from tidewheel.rebalance.model import TaskId
from tidewheel.streams.bulk.stores import BulkStore
from tidewheel.streams.bulk.verify import _copied
from tidewheel.streams.config import StreamsConfig


def test_the_database_of_a_shard_is_named_and_not_compared(tmp_path: Path) -> None:
    config = StreamsConfig(application_id="shop", state_dir=tmp_path)
    spec = SPECS["key-value"]
    store = BulkStore(spec=spec, topic="shop-counts-changelog", subtopology=0, partitions=2)
    notes: list[str] = []
    for task, expected in (("0_1/2of4", 1), ("0_7/2of4", 1), ("1_0", 1)):
        path = tmp_path / task.replace("/", "-")
        copies = _copied(
            config, {spec.name: store}, TaskId.parse(task), path, tmp_path / "copy", {}, notes
        )
        assert list(copies) == []
        assert len(notes) == expected
    assert "0_1-2of4 is not compared: it has the rows of shard 2of4 only" in notes[0]
