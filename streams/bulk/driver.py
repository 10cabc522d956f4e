"""What every bulk job has on the driver's side: a session, the cluster, progress, and what executors are told."""

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
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.portable_settings import Keeper, clients_of, settings_of
from tidewheel.streams.topology.topology import Topology

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark_job import SparkSession
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tidewheel.streams.broker.broker_errors import JavaError
from tidewheel.streams.broker.java import find_java
from tidewheel.streams.errors import ConfigError

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark_job import SparkSession

_NAME: Final = "tidewheel"


#: Smaller runs would be many, and have to be merged.
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
    """Yield the caller's session, or one of our own for as long as the body runs.

    Args:
        spark: The caller's.
        what: What it is for, for Spark's own displays.
        master: Where a session of our own works; None for this machine, or for what spark-submit was told.
        settings: Spark's settings for a session of our own.

    Raises:
        ConfigError: PySpark is not installed.
        StreamsError: Spark could not start, or there is no Java.
    """
    _check_installed()
    # Late: a program that only refers to `tidewheel.bulk` needs no PySpark.
    from tidewheel.state_stores.bulk_restore.spark_job import spark_session  # noqa: PLC0415

    java_home = _java_home() if spark is None else None
    with spark_session(
        spark, name=f"{_NAME} {what}", master=master, java_home=java_home, settings=settings
    ) as found:
        yield found


def started_session(
    spark: "SparkSession | None", *, what: str, master: str | None = None
) -> "SparkSession":
    """Return the caller's session, or one that stays until the program ends or stops it; see `bulk_session`."""
    _check_installed()
    from tidewheel.state_stores.bulk_restore.spark_job import start_session  # noqa: PLC0415 - see above

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
    """How far a step of a bulk job is.

    Attributes:
        step: What is being done.
        done: How much of it, in offsets of the changelogs (in rows for a merge and for a bootstrap).
        total: How much there is; None while nobody knows, as where files are read for the first time.
        elapsed_s: Since when, in seconds.
    """

    step: str
    done: int
    total: int | None
    elapsed_s: float

    @property
    def per_second(self) -> float:
        """Return the rate so far.

        >>> BulkProgress(step="reading", done=300, total=400, elapsed_s=3.0).per_second
        100.0
        """
        return self.done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Return how long the rest takes at that rate, None while nobody can tell.

        >>> BulkProgress(step="reading", done=300, total=400, elapsed_s=3.0).remaining_s
        1.0
        """
        if self.total is None or self.done == 0:
            return None
        return (self.total - self.done) / self.per_second


#: Told how far a job is, now and then and from another thread.
OnProgress = Callable[[BulkProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkDriver:
    """A bulk job's tools, for as long as it runs. Made by `bulk_driver`.

    Attributes:
        config: The application's settings.
        session: Where its Spark tasks run.
        admin: The application's cluster.
        travelling: Client settings as they may travel.
        keeper: Keeps what must not.
        on_progress: Told how far it is.
        run_bytes: Memory for the rows of one Spark task.
    """

    config: StreamsConfig
    session: "SparkSession"
    admin: KafkaAdmin
    travelling: ClientSettings
    keeper: Keeper
    on_progress: OnProgress | None
    run_bytes: int = RUN_BYTES

    def work(self, stores: Sequence[BulkStore], location: str) -> ExecutorWork:
        """Return what executors are told to work on some stores, with runs at a location."""
        return ExecutorWork(
            settings=self.travelling,
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
        """Return what a function returns for each item, in their order, a Spark task each.

        Raises:
            StreamsError: A task raised one, or Spark gave up on a task.
        """
        from tidewheel.state_stores.bulk_restore.spark_job import run_on_executors  # noqa: PLC0415 - see bulk_session

        return run_on_executors(
            self.session,
            partial(function, work),
            items,
            what=f"{self.config.application_id}: {step}",
            on_progress=self.teller(step, total),
        )

    def teller(self, step: str, total: int) -> Callable[[int], None] | None:
        """Return what tells of counts of a step as progress, from now on; None if nobody is to be told."""
        if self.on_progress is None:
            return None
        # A task that Spark ran twice was counted twice.
        tell = _teller(self.on_progress, step)
        return lambda done: tell(min(done, total), total)

    def teller_of_two(
        self, first: str, second: str, arrived: Callable[[], int]
    ) -> Callable[[int], None] | None:
        """Return what tells of a job in two stages. The second begins when all has arrived that the first has sent.

        Args:
            first: The first stage, whose total nobody knows before it is over.
            second: The second stage; what is returned takes its counts.
            arrived: Tells how much the first stage has sent.
        """
        if self.on_progress is None:
            return None
        tell_first = _teller(self.on_progress, first)
        tell_second: Callable[[int], None] | None = None

        def tell(done: int) -> None:
            nonlocal tell_second
            if done and tell_second is None:
                total = arrived()
                tell_first(total, total)
                tell_second = self.teller(second, total)
            if tell_second is None:
                tell_first(arrived(), None)
            else:
                tell_second(done)

        return tell

    @property
    def runs_here(self) -> bool:
        """Return whether executors see this machine's files."""
        from tidewheel.state_stores.bulk_restore.spark_job import runs_here  # noqa: PLC0415 - see bulk_session

        return runs_here(self.session)


def _teller(on_progress: OnProgress, step: str) -> Callable[[int, int | None], None]:
    """Return what tells how much of a step is done, of how much, since now."""
    began_s = time.monotonic()

    def tell(done: int, total: int | None) -> None:
        elapsed_s = time.monotonic() - began_s
        on_progress(BulkProgress(step=step, done=done, total=total, elapsed_s=elapsed_s))

    return tell


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
    """Yield a job's tools.

    Args:
        config: The application's settings.
        spark: The caller's session; None for one of our own.
        what: The job, in a word.
        master: Where a session of our own works.
        on_progress: Told how far it is.
        settings: Spark's settings for a session of our own.

    Raises:
        ConfigError: Spark is not installed, or a secret would have to travel in the open.
        StreamsError: Spark could not start.
    """
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(
            bulk_session(spark, what=what, master=master, settings=settings)
        )
        from tidewheel.state_stores.bulk_restore.spark_job import (  # noqa: PLC0415 - see bulk_session
            cores,
            is_encrypted,
            runs_here,
        )

        clients = settings_of(config)
        keeper = stack.enter_context(
            Keeper(same_machine=runs_here(session), encrypted=is_encrypted(session))
        )
        travelling = keeper.settings(clients)
        admin = clients_of(clients).admin()
        stack.callback(admin.close)
        yield BulkDriver(
            config=config,
            session=session,
            admin=admin,
            travelling=travelling,
            keeper=keeper,
            on_progress=on_progress,
            run_bytes=run_bytes(cores(session)) if runs_here(session) else RUN_BYTES,
        )


def run_bytes(at_once: int) -> int:
    """Return how much memory the rows of one task may take when so many tasks share this machine: a third in all.

    >>> run_bytes(1_000_000) == LEAST_RUN_BYTES
    True
    """
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(RUN_BYTES, max(LEAST_RUN_BYTES, memory_bytes // 3 // at_once))


def stores_by_name(
    topology: Topology, driver: BulkDriver, names: Sequence[str] | None
) -> Mapping[str, BulkStore]:
    """Return the stores a job is about, by name; see `bulk_stores`."""
    found = bulk_stores(topology, driver.config, driver.admin, names)
    return {store.name: store for store in found}


@contextlib.contextmanager
def reached(place: SnapshotLocation) -> Generator[None]:
    """Raise `StreamsError` where the body can't reach or use a place of snapshots."""
    try:
        yield
    except OSError as error:
        raise StreamsError(
            f"{place!r} can't be used: {error}; check snapshot_location, that it can be reached from here, and its permissions"
        ) from error


def newest_snapshot(
    place: SnapshotLocation | None, application_id: str, store: str, topic_id: bytes
) -> StoreSnapshot | None:
    """Return the newest valid snapshot of a store by its changelog's id, None without one or without a place; raises `StreamsError`."""
    if place is None:
        return None
    with reached(place):
        return place.newest(application_id, store, topic_id)


def now_ms() -> int:
    """Return the time (ms since the epoch)."""
    return time.time_ns() // 1_000_000
