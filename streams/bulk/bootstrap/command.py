"""The bootstrap command: loads a store from files, a table or any Spark frame."""

import contextlib
import secrets
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.frame_source import FrameSource
from tidewheel.streams.bulk.bootstrap.driver import (
    BootstrapDriver,
    BootstrapRefused,
    BootstrapReport,
)
from tidewheel.streams.bulk.bootstrap.other_stores import other_stores_of
from tidewheel.streams.bulk.bootstrap.plan import parse_input_offsets, target_of
from tidewheel.streams.bulk.bootstrap.rows import columns_of, converted_key_type
from tidewheel.streams.bulk.bootstrap.spark_job import spark_job
from tidewheel.streams.bulk.bounded_transactions import TRANSACTION_TIMEOUT_MS
from tidewheel.streams.bulk.driver import (
    BulkDriver,
    OnProgress,
    bulk_driver,
    now_ms,
    stores_by_name,
)
from tidewheel.streams.bulk.loading import BulkStep, OnStep, workers_here
from tidewheel.streams.bulk.snapshots import make_snapshots
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.group.group_log_writer import group_log_writer
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.changelog import read_range
from tidewheel.streams.kafka.portable_settings import clients_of, settings_of
from tidewheel.streams.topology.topology import Topology, checked_topology
from tidewheel.streams.worker.topic_setup import plan_with_topics

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import DataFrame, SparkSession

__all__ = ["BootstrapRefused", "BootstrapReport", "FrameSource", "bootstrap"]

_UTC: Final = "UTC"


def bootstrap(
    topology: Topology,
    config: StreamsConfig,
    store: str,
    frame: "DataFrame | FrameSource",
    *,
    input_offsets: str | Mapping[str, Mapping[Any, int]],
    replace: bool = False,
    order_by: str | None = None,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    on_progress: OnProgress | None = None,
    on_step: OnStep = lambda _: None,
) -> BootstrapReport:
    """Load a store from a frame and commit the input offsets at which the application resumes.

    Stop the application first; members started meanwhile wait. After a kill, run it again: no
    worker uses a half-loaded store. With `snapshot_location` it also makes a snapshot.

    Args:
        frame: Rows with column `key`, and `value` or other columns as its fields. `timestamp` (ms,
            or a timestamp) defaults to now. Windows need `window_start`; sessions need
            `session_start` and `session_end`. Frames of `state_dataframe` fit.
        input_offsets: "earliest", "latest", "timestamp:MS", "file:PATH" or offsets by topic and
            partition. The rows must cover all input before these offsets.
        replace: Replace existing content and delete keys without a row.
        order_by: Column whose largest value wins among rows of a key; None rejects duplicates.
        spark: Session; None for the frame's, or a temporary one at `master`.

    Raises:
        ConfigError: Columns are missing or duplicated, offsets are malformed, or Spark is missing.
        StreamsError: The load was refused or failed; reports if the group stays paused.
    """
    checked_topology(topology, "bootstrap")
    offsets = parse_input_offsets(input_offsets)
    if spark is None and not isinstance(frame, FrameSource):
        spark = frame.sparkSession
    time_zone = (isinstance(frame, FrameSource) and frame.time_zone) or _UTC
    with (
        bulk_driver(
            config,
            spark,
            what=f"bootstrap {store}",
            master=master,
            on_progress=on_progress,
            settings={"spark.sql.session.timeZone": time_zone},
        ) as driver,
        contextlib.ExitStack() as stack,
    ):
        settings = settings_of(config)
        admin = KafkaResetAdmin(settings)
        stack.callback(admin.close)
        topology_hash = bytes.fromhex(topology.hash())
        plan = plan_with_topics(
            topology.spec(config), config, admin, admin.list_topics(), topology_hash
        )
        target = target_of(plan, config.application_id, store)
        from tidewheel.state_stores.bulk_restore.spark.frames import (  # noqa: PLC0415 - see bulk_session
            check_sortable,
            column_names,
        )
        from tidewheel.state_stores.bulk_restore.spark.sources import (  # noqa: PLC0415 - see bulk_session
            read_frame,
            session_time_zone,
            zoned,
        )

        if isinstance(frame, FrameSource):
            zone = session_time_zone(driver.session)
            on_step(
                BulkStep(
                    phase="reading", text=f"reads {frame.source}; times without a zone are {zone}"
                )
            )
            frame = read_frame(
                driver.session, frame, key_type=converted_key_type(target.spec.key_serde)
            )
        columns = columns_of(column_names(frame), target.spec, order_by)
        frame = zoned(frame, (columns.timestamp, columns.start, columns.end))
        if order_by is not None:
            check_sortable(frame, order_by)
        job = stack.enter_context(spark_job(driver, frame, target, columns))
        group_log = group_log_writer(settings, admin)
        stack.callback(group_log.close)
        group_log.open(config.replication_factor)
        clients = clients_of(settings)
        publish = None
        if config.snapshot_location is not None:
            publish = partial(_make_snapshot, topology, driver, store)
        return BootstrapDriver(
            target,
            group_log=group_log,
            admin=admin,
            producer=lambda name: clients.transactional_producer(name, TRANSACTION_TIMEOUT_MS),
            job=job,
            attempt=secrets.token_hex(8),
            topology_hash=topology_hash,
            now_ms=now_ms,
            on_step=on_step,
            workers_here=lambda: workers_here(config),
            other_stores=other_stores_of(plan, config.application_id, target),
            has_records=partial(_has_records, settings),
            publish=publish,
        ).run(offsets, replace=replace)


def _has_records(settings: ClientSettings, partition: TopicPartition, start: int, end: int) -> bool:
    with contextlib.closing(read_range(settings, partition, start, end)) as runs:
        return any(map(len, runs))


def _make_snapshot(topology: Topology, driver: BulkDriver, store: str) -> None:
    url = str(driver.config.snapshot_location)
    make_snapshots(driver, stores_by_name(topology, driver, [store]), url)
