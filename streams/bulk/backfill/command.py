"""`backfill`: computes all stores of an application over history, and hands them to its workers."""

import contextlib
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidewheel.rebalance.producer_ids import backfill_id
from tidewheel.rebalance.protocol.group import Group
from tidewheel.state_stores.bulk_restore.frame_source import FrameSource
from tidewheel.streams.bulk.backfill.computation import (
    BackfillReport,
    Computation,
    HistoryFrame,
    Question,
)
from tidewheel.streams.bulk.backfill.cut import cut_of_application
from tidewheel.streams.bulk.backfill.driver import (
    BackfillDriver,
    Ports,
    check_application,
)
from tidewheel.streams.bulk.backfill.objections import check_accepted
from tidewheel.streams.bulk.backfill.plan import (
    BackfillPlan,
    check_differences,
    plan_backfill,
)
from tidewheel.streams.bulk.bootstrap.plan import parse_input_offsets
from tidewheel.streams.bulk.bounded_transactions import TRANSACTION_TIMEOUT_MS
from tidewheel.streams.bulk.driver import (
    BulkDriver,
    OnProgress,
    bulk_driver,
)
from tidewheel.streams.bulk.loading import BulkStep, OnStep, workers_here
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.streams_config import checked_config
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.group.group_log_writer import group_log_writer
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.portable_settings import clients_of, settings_of
from tidewheel.streams.topology.topology import Topology, checked_topology
from tidewheel.streams.worker.topic_setup import plan_with_topics, spec_of

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import DataFrame, SparkSession

_FOLDER: Final = "backfill"
_UTC: Final = "UTC"


def backfill(
    topology: Topology,
    config: StreamsConfig,
    *,
    outputs: str | None = None,
    history: "Mapping[str, DataFrame | FrameSource | HistoryFrame] | None" = None,
    begins: Mapping[str, str] | None = None,
    until: str = "latest",
    until_of: str | None = None,
    accept: Iterable[str] = (),
    work: str | Path | None = None,
    restart: bool = False,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    on_progress: OnProgress | None = None,
    on_step: OnStep = lambda _: None,
) -> BackfillReport:
    """Compute the state of a new application over history; its workers continue from there.

    Spark runs the topology over the records of its source topics. Then it writes all stores to
    their changelogs and commits the input offsets and stream times, so that workers continue with
    exactly the next record. The application must not have run yet. Members that start meanwhile
    wait. After a kill, run it again: it continues with the step that is not done.

    Args:
        outputs: What becomes of the records for output topics: "discard", "topics" (they are
            written there, exactly once), or a new or empty folder or URL for Parquet files. Needed
            if the topology writes to topics.
        history: By topic, a frame with older records than Kafka has. Columns as in `run_batch`.
            With `partition` and `offset`, rows are used up to the first offset of Kafka; a
            `HistoryFrame` gives the time that divides other frames from Kafka's records.
        begins: By topic, where to begin in Kafka: "earliest" (the default), "timestamp:MS" or "file:PATH".
        until: Where to end: "latest", "timestamp:MS" or "file:PATH" of JSON {topic: {partition:
            offset}}. It is fixed when the first run begins.
        until_of: Instead of `until`: an application, at rest (`tidewheel group rest`) or stopped, whose
            committed offsets are the end. Its workers have made all outputs of earlier records, and
            this application's make all later ones. At rest, workers that start again wait; a stopped
            application must stay stopped, else both process the same records.
        accept: What to accept: differences from live workers ("wall-clock", "cache", "order"); that
            brokers may delete old results immediately ("retention"); of a history that records may
            be missing before Kafka's ("gap"), that rows may be among Kafka's ("overlap"), that rows
            of one key and time are ordered by value ("ties"); that topics which the application
            `until_of` does not read end at their last record ("cut-at-end").
        work: Folder or URL for intermediate files, which the driver and all executors can use.
            None: next to the snapshots, or in `state_dir` if all of Spark runs on this machine.
        restart: Forget an earlier run that was killed.
        spark: Session; None for a temporary one at `master`.

    Raises:
        BackfillRefused: The application has run, has members, or is held.
        ConfigError: An argument is wrong, or the state can't be handed over.
        StreamsError: A user's function, the cluster or Spark failed.
    """
    checked_topology(topology, "backfill")
    config = checked_config(config, "backfill")
    question = Question(
        outputs=outputs,
        begins=dict(begins or {}),
        until=until,
        until_of=until_of,
        accept=check_accepted(accept),
        history={
            topic: frame if isinstance(frame, HistoryFrame) else HistoryFrame(frame)
            for topic, frame in (history or {}).items()
        },
    )
    with contextlib.ExitStack() as stack:
        admin = KafkaResetAdmin(settings_of(config)).found()
        stack.callback(admin.close)
        plan = _planned(topology, config, admin, question, question.history)
        check_differences(plan.differences, question.accept)
        group_log = group_log_writer(settings_of(config), admin)
        stack.callback(group_log.close)
        group_log.open(config.replication_factor)
        # Before Spark starts, which takes seconds of a cut-over's pause.
        check_application(
            plan.live,
            config.application_id,
            group_log.group(decided=True),
            admin,
            group_log.live_members(),
            lambda: workers_here(config),
        )
        if spark is None:
            on_step(BulkStep(phase="spark", text="starting Spark"))
        driver = stack.enter_context(
            bulk_driver(
                config,
                spark,
                what="backfill",
                master=master,
                on_progress=on_progress,
                settings={"spark.sql.session.timeZone": _UTC},
            )
        )
        url = _work_url(driver, config, work)
        run = Computation(topology, config, plan, question, driver, url, on_step)
        ports = Ports(
            admin=admin,
            group_log=group_log,
            producer=lambda: clients_of(settings_of(config)).transactional_producer(
                backfill_id(config.application_id), TRANSACTION_TIMEOUT_MS
            ),
            create_topics=lambda: _create_topics(topology, config, admin),
            write=run.write,
            snapshot=run.snapshot,
            workers_here=lambda: workers_here(config),
            check_owner=run.check_owner,
        )
        publication = BackfillDriver(
            plan.live,
            config.application_id,
            ports,
            attempt=secrets.token_hex(8),
            on_step=on_step,
        )
        publication.check()
        run.open(admin, restart=restart, pending=publication.pending_job)
        run.compute(admin)
        run.check_results(admin)
        run.save_outputs()
        publication.publish(run.results(admin))
        return run.finish()


def check_backfill(
    topology: Topology,
    config: StreamsConfig,
    *,
    outputs: str | None = None,
    history: Iterable[str] = (),
    begins: Mapping[str, str] | None = None,
    until: str = "latest",
    until_of: str | None = None,
    accept: Iterable[str] = (),
) -> BackfillPlan:
    """Return the plan of a backfill with these arguments; see `backfill`. Reads no record.

    While the application of `until_of` works, the plan is that for its present offsets; its `obstacle`
    says so.

    Args:
        history: Topics that have a history.

    Raises:
        BackfillRefused: The application has run, has members, or is held.
        ConfigError: An argument is wrong, or the state can't be handed over.
    """
    checked_topology(topology, "check_backfill")
    config = checked_config(config, "check_backfill")
    question = Question(
        outputs=outputs,
        begins=dict(begins or {}),
        until=until,
        until_of=until_of,
        accept=check_accepted(accept),
    )
    app = config.application_id
    with contextlib.ExitStack() as stack:
        admin = KafkaResetAdmin(settings_of(config)).found()
        stack.callback(admin.close)
        plan = _planned(topology, config, admin, question, history, must_rest=False)
        group, live_members = Group(), tuple[str, ...]()
        if {state_topic(app), inbox_topic(app)} <= admin.list_topics().keys():
            group_log = group_log_writer(settings_of(config), admin)
            stack.callback(group_log.close)
            group, live_members = group_log.group(decided=True), group_log.live_members()
        check_application(plan.live, app, group, admin, live_members)
        return plan


def _planned(
    topology: Topology,
    config: StreamsConfig,
    admin: KafkaResetAdmin,
    question: Question,
    history: Iterable[str],
    *,
    must_rest: bool = True,
) -> BackfillPlan:
    """Return the plan.

    Raises:
        BackfillRefused: The application of `until_of` is not at rest, and `must_rest`.
    """
    if question.until_of is not None and question.until != "latest":
        raise ConfigError(
            f"backfill: until {question.until!r} and until_of {question.until_of!r} both say where to end; leave one out"
        )
    cut = None
    if question.until_of is not None:
        cut = cut_of_application(config, question.until_of, admin, must_rest=must_rest)
    return plan_backfill(
        topology,
        config,
        admin,
        admin.list_topics(),
        outputs=question.outputs,
        begins=question.begins,
        until=cut or parse_input_offsets(question.until),
        history=history,
    )


def _create_topics(topology: Topology, config: StreamsConfig, admin: KafkaResetAdmin) -> None:
    plan_with_topics(
        spec_of(topology, config),
        config,
        admin,
        admin.list_topics(),
        bytes.fromhex(topology.hash()),
    )


def _work_url(driver: BulkDriver, config: StreamsConfig, work: str | Path | None) -> str:
    """Return the folder of this application's files; a killed run is found there again."""
    if work is None and config.snapshot_location is not None:
        work = f"{str(config.snapshot_location).rstrip('/')}/{_FOLDER}"
    elif work is None and driver.runs_here:
        work = Path(config.state_dir) / f".{_FOLDER}"
    if work is None:
        raise ConfigError(
            "backfill: Spark's executors may run on other machines; give work= (--work), a folder or URL that the driver and all "
            "executors can read and write, such as s3://bucket/work"
        )
    url = f"{str(work).rstrip('/')}/{config.application_id}"
    return url if "://" in url else str(Path(url).expanduser().absolute())
