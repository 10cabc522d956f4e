"""Driver side of every bulk job: Spark session, cluster, progress and settings for executors."""

import contextlib
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import StoreSnapshot
from tidewheel.state_stores.bulk_restore.runs import RUN_BYTES
from tidewheel.state_stores.bulk_restore.shape import StoreShape
from tidewheel.streams.bulk.executors import Counted, ExecutorWork
from tidewheel.streams.bulk.stores import BulkStore, bulk_stores
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.portable_settings import Keeper, settings_of
from tidewheel.streams.topology.topology import Topology

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import SparkSession
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tidewheel.streams.broker.broker_errors import JavaError
from tidewheel.streams.broker.java import find_java
from tidewheel.streams.errors import ConfigError

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import SparkSession

_NAME: Final = "tidewheel"


#: Least memory per run (sorted file): smaller ones would be many, and need merging.
LEAST_RUN_BYTES: Final = 32 * 1024 * 1024

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextlib.contextmanager
def bulk_session(
    spark: "SparkSession | None",
    *,
    what: str,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Generator["SparkSession"]:
    """Yield the caller's Spark session, or a temporary one with these settings.

    Raises:
        ConfigError: PySpark is not installed.
        StreamsError: Spark could not start, or Java is missing.
    """
    _check_installed()
    # Imported late: referring to `tidewheel.bulk` needs no PySpark.
    from tidewheel.state_stores.bulk_restore.spark.job import spark_session  # noqa: PLC0415

    java_home = _java_home() if spark is None else None
    with spark_session(
        spark, name=f"{_NAME} {what}", master=master, java_home=java_home, settings=settings
    ) as session:
        yield session


def started_session(
    spark: "SparkSession | None", *, what: str, master: str | None = None
) -> "SparkSession":
    """Return the caller's session, or one open until the program ends; see `bulk_session`."""
    _check_installed()
    from tidewheel.state_stores.bulk_restore.spark.job import start_session  # noqa: PLC0415 - see above

    if spark is not None:
        return spark
    session, _ = start_session(name=f"{_NAME} {what}", master=master, java_home=_java_home())
    return session


def _check_installed() -> None:
    if find_spec("pyspark") is None:
        raise ConfigError(
            "bulk work needs Spark; run: pip install 'tidewheel[spark]' (456 MB to download)"
        )


def _java_home() -> Path:
    try:
        return find_java().home
    except JavaError as error:
        raise StreamsError(f"Spark needs a Java: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkProgress:
    """Progress of one step of a bulk job.

    Attributes:
        done: Changelog offsets processed (rows for a merge and for a bootstrap).
        total: In the same unit; None while unknown.
    """

    step: str
    done: int
    total: int | None
    elapsed_s: float

    @property
    def per_second(self) -> float:
        """Return the average rate so far.

        >>> BulkProgress(step="reading", done=300, total=400, elapsed_s=3.0).per_second
        100.0
        """
        return self.done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Return the estimated seconds left, None while unknown.

        >>> BulkProgress(step="reading", done=300, total=400, elapsed_s=3.0).remaining_s
        1.0
        """
        if self.total is None or self.done == 0:
            return None
        return (self.total - self.done) / self.per_second


#: Progress callback; called from another thread.
OnProgress = Callable[[BulkProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkDriver:
    """Tools of a running bulk job, made by `bulk_driver`.

    Attributes:
        executor_settings: Client settings for executors. `keeper` has moved their secrets to local files,
            or checked that Spark encrypts what it sends.
        run_bytes: Memory for the rows of one Spark task.
    """

    config: StreamsConfig
    session: "SparkSession"
    admin: KafkaAdmin
    executor_settings: ClientSettings
    keeper: Keeper
    on_progress: OnProgress | None
    run_bytes: int = RUN_BYTES

    def work(self, stores: Sequence[BulkStore], location: str) -> ExecutorWork:
        return ExecutorWork(
            settings=self.executor_settings,
            location=self.keeper.url("snapshot_location", location),
            application_id=self.config.application_id,
            shapes={store.name: StoreShape.of(store.spec) for store in stores},
            topics={store.name: store.topic for store in stores},
            run_bytes=self.run_bytes,
        )

    def run(
        self,
        function: Callable[[ExecutorWork, Item, Counted], Result],
        work: ExecutorWork,
        items: Sequence[Item],
        *,
        step: str,
        total: int,
    ) -> list[Result]:
        """Run a function in one Spark task per item; return the results in order."""
        from tidewheel.state_stores.bulk_restore.spark.job import run_on_executors  # noqa: PLC0415 - see bulk_session

        return run_on_executors(
            self.session,
            partial(function, work),
            items,
            description=f"{self.config.application_id}: {step}",
            on_progress=self.progress_reporter(step, total),
        )

    def progress_reporter(self, step: str, total: int) -> Callable[[int], None] | None:
        return limited_reporter(self.on_progress, step, total)

    def two_stage_reporter(
        self, first: str, second: str, arrived: Callable[[], int]
    ) -> Callable[[int], None] | None:
        """Return a progress callback for two stages; it gets the rows done by the second.

        While that is 0, it reports the first stage's rows, `arrived()`. Later, these are the second
        stage's total.
        """
        if self.on_progress is None:
            return None
        report_first = reporter(self.on_progress, first)
        report_second: Callable[[int], None] | None = None

        def report(done: int) -> None:
            nonlocal report_second
            if done and report_second is None:
                total = arrived()
                report_first(total, total)
                report_second = self.progress_reporter(second, total)
            if report_second is None:
                report_first(arrived(), None)
            else:
                report_second(done)

        return report

    @property
    def runs_here(self) -> bool:
        """Return true if executors share this machine's files."""
        from tidewheel.state_stores.bulk_restore.spark.job import runs_here  # noqa: PLC0415 - see bulk_session

        return runs_here(self.session)


def limited_reporter(
    on_progress: OnProgress | None, step: str, total: int
) -> Callable[[int], None] | None:
    """Return a progress callback; Spark may run and count a task twice, so `done` is limited."""
    if on_progress is None:
        return None
    report = reporter(on_progress, step)
    return lambda done: report(min(done, total), total)


def reporter(on_progress: OnProgress, step: str) -> Callable[[int, int | None], None]:
    began_s = time.monotonic()

    def report(done: int, total: int | None) -> None:
        elapsed_s = time.monotonic() - began_s
        on_progress(BulkProgress(step=step, done=done, total=total, elapsed_s=elapsed_s))

    return report


@contextlib.contextmanager
def bulk_driver(
    config: StreamsConfig,
    spark: "SparkSession | None",
    *,
    what: str,
    master: str | None = None,
    on_progress: OnProgress | None = None,
    settings: Mapping[str, str] | None = None,
) -> Generator[BulkDriver]:
    """Yield a job's tools; see `bulk_session`.

    Raises:
        ConfigError: Also if executors would get a secret unencrypted.
    """
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(
            bulk_session(spark, what=what, master=master, settings=settings)
        )
        from tidewheel.state_stores.bulk_restore.spark.job import (  # noqa: PLC0415 - see bulk_session
            cores,
            is_encrypted,
            runs_here,
        )

        clients = settings_of(config)
        keeper = stack.enter_context(
            Keeper(same_machine=runs_here(session), encrypted=is_encrypted(session))
        )
        executor_settings = keeper.settings(clients)
        admin = KafkaResetAdmin(clients)
        stack.callback(admin.close)
        yield BulkDriver(
            config=config,
            session=session,
            admin=admin,
            executor_settings=executor_settings,
            keeper=keeper,
            on_progress=on_progress,
            run_bytes=run_bytes(cores(session)) if runs_here(session) else RUN_BYTES,
        )


def run_bytes(at_once: int) -> int:
    """Return bytes for one task's rows: `at_once` tasks share a third of this machine's memory.

    >>> run_bytes(1_000_000) == LEAST_RUN_BYTES
    True
    """
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(RUN_BYTES, max(LEAST_RUN_BYTES, memory_bytes // 3 // at_once))


def stores_by_name(
    topology: Topology, driver: BulkDriver, names: Sequence[str] | None
) -> Mapping[str, BulkStore]:
    stores = bulk_stores(topology, driver.config, driver.admin, names)
    return {store.name: store for store in stores}


@contextlib.contextmanager
def reached(place: SnapshotLocation) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StreamsError(
            f"{place!r} can't be used: {error}; check snapshot_location, that it can be reached from here, and its permissions"
        ) from error


def newest_snapshot(
    place: SnapshotLocation | None, application_id: str, store: str, topic_id: bytes
) -> StoreSnapshot | None:
    if place is None:
        return None
    with reached(place):
        return place.newest(application_id, store, topic_id)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
