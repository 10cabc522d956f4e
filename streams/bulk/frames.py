"""Store contents as a Spark data frame, decoded by the store's serdes."""

import atexit
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidewheel.state_stores.bulk_restore.content import StoredRow
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import ChangelogFacts
from tidewheel.state_stores.bulk_restore.runs import RUN_BYTES
from tidewheel.state_stores.bulk_restore.shape import StoreShape
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreSpec
from tidewheel.streams.bulk.columns import Row, RowDecoder, columns_of, type_of
from tidewheel.streams.bulk.content import PartitionToRead, read_content, reading_plan
from tidewheel.streams.bulk.driver import newest_snapshot, now_ms, run_bytes, started_session
from tidewheel.streams.bulk.executors import ExecutorWork
from tidewheel.streams.bulk.stores import BulkStore, bulk_stores, changelog_facts
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.changelog import read_range
from tidewheel.streams.kafka.portable_settings import Keeper, settings_of
from tidewheel.streams.topology.topology import Topology

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import DataFrame, SparkSession

_PREFIX: Final = "tidewheel-frame-"

#: Records per partition sampled to infer column types.
_SAMPLED_ROWS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    work: ExecutorWork
    spec: StoreSpec
    topic: str
    key_type: str
    value_type: str

    def rows(self, task: PartitionToRead) -> Iterator[Row]:
        reader = RowDecoder(self.spec, self.topic, self.key_type, self.value_type)
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
            content = read_content(self.work, task, Path(folder), _uncounted)
            yield from map(reader.row, content.rows(self.spec))


def _uncounted(records: int) -> None: ...


def state_dataframe(
    topology: Topology,
    config: StreamsConfig,
    store: str,
    *,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    key_type: str | None = None,
    value_type: str | None = None,
) -> "DataFrame":
    """Return a store's committed content as a data frame, decoded by its serdes.

    Keys and values of one Spark type (text, bytes, numbers, booleans, times) keep it; others
    become JSON text. Each use reads the newest snapshot and changelog again: cache a frame used
    often.

    Args:
        spark: Session; None opens one on this machine that stays open for the frame.
        master: Spark master of that session.
        key_type: Spark DDL type of the key column, instead of the inferred one.
        value_type: Same for the value column.

    Raises:
        ConfigError: PySpark or the store is missing.
        StreamsError: The cluster or Spark failed.
    """
    from tidewheel.state_stores.bulk_restore.spark.frames import PortableFunction  # noqa: PLC0415 - see bulk_session
    from tidewheel.state_stores.bulk_restore.spark.job import (  # noqa: PLC0415 - likewise
        cores,
        frame_from_executors,
        is_encrypted,
        runs_here,
    )

    session = started_session(spark, what="state", master=master)
    settings = settings_of(config)
    keeper = Keeper(same_machine=runs_here(session), encrypted=is_encrypted(session))
    # Delete the files with secrets only when the program ends: executors read them at each use of
    # the frame, and of frames derived from it.
    atexit.register(keeper.close)
    admin = KafkaResetAdmin(settings)
    try:
        (bulk_store,) = bulk_stores(topology, config, admin, [store])
        facts = list(changelog_facts([bulk_store], admin, now_ms()).values())
    finally:
        admin.close()
    url = config.snapshot_location
    place = None if url is None else SnapshotLocation(str(url))
    snapshot = newest_snapshot(place, config.application_id, bulk_store.name, facts[0].topic_id)
    if key_type is None or value_type is None:
        keys, values = _some_of(bulk_store, settings, facts)
        key_type = key_type or type_of(keys)
        value_type = value_type or type_of(values)
    work = ExecutorWork(
        settings=keeper.settings(settings),
        location="" if url is None else keeper.url("snapshot_location", str(url)),
        application_id=config.application_id,
        shapes={bulk_store.name: StoreShape.of(bulk_store.spec)},
        topics={bulk_store.name: bulk_store.topic},
        run_bytes=run_bytes(cores(session)) if runs_here(session) else RUN_BYTES,
    )
    frame = _Frame(
        work=work,
        spec=bulk_store.spec,
        topic=bulk_store.topic,
        key_type=key_type,
        value_type=value_type,
    )
    return frame_from_executors(
        session,
        PortableFunction(frame.rows),
        [reading_plan(bulk_store, snapshot, partition_facts)[0] for partition_facts in facts],
        columns=columns_of(bulk_store.spec, key_type, value_type),
    )


def _some_of(
    store: BulkStore, settings: ClientSettings, facts: Sequence[ChangelogFacts]
) -> tuple[list[Any], list[Any]]:
    reader = RowDecoder(store.spec, store.topic, "string", "string")
    keys: list[Any] = []
    values: list[Any] = []
    for partition_facts in facts:
        for stored in islice(_rows_of_log(store, settings, partition_facts), _SAMPLED_ROWS):
            key, value = reader.decoded(stored)
            keys.append(key)
            values.append(value)
    return keys, values


def _rows_of_log(
    store: BulkStore, settings: ClientSettings, facts: ChangelogFacts
) -> Iterator[StoredRow]:
    segmented = store.spec.kind in SEGMENTED_KINDS
    layout = SegmentLayout.of(store.spec) if segmented else None
    partition = store.changelog(facts.partition)
    for run in read_range(settings, partition, facts.log_start, facts.stable_end):
        for key, value in zip(run.raw_keys, run.raw_values, strict=True):
            if key is None or value is None or (layout is not None and not layout.is_row(key)):
                continue
            yield StoredRow(key if layout is None else key[: -layout.tail], value, 0)
