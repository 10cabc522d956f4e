"""Spark as bulk work sees it: a session, functions that run on its executors, and frames of what they return.

The only importer of PySpark. What runs on the executors is given by the caller and is found there by its import path,
so executors need what pip installs and nothing else; no jar, no Arrow.
"""

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it has no types
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidewheel.state_stores.bulk_restore.urls import shown_text
from tidewheel.state_stores.errors import StreamsError

__all__ = [
    "LOCAL_MASTER",
    "DataFrame",
    "SparkSession",
    "cores",
    "frame_from_executors",
    "is_encrypted",
    "is_local",
    "next_step",
    "reason_of",
    "run_on_executors",
    "runs_here",
    "spark_session",
    "start_session",
]

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Told how many records were read since it was told last.
Counted = Callable[[int], None]

LOCAL_MASTER: Final = "local[*]"

#: Set where spark-submit has started this program: its master and settings hold then.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"

#: Which Python executors start.
_PYTHON: Final = "PYSPARK_PYTHON"

#: What of Spark's own log is shown: errors, on standard error.
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

#: Settings that encrypt what travels between Spark's processes.
_ENCRYPTING: Final = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")

#: How often progress is told while a job runs.
_PROGRESS_S: Final = 0.5

#: A Java exception of a failed task holds the traceback of its Python; the last line of that says what was wrong.
_TRACEBACK: Final = "Traceback (most recent call last)"

#: What was wrong in Spark itself, a file that it can't read, say: the innermost of these comes last.
_CONDITION: Final = re.compile(r"^(?:Caused by)?: [\w.$]+: (\[[A-Z][A-Z0-9_.]+\] .*)", re.MULTILINE)

#: Executors whose Python does not start, is of another version, or has none of our modules.
_OTHER_PYTHON: Final = re.compile(
    r"pyspark\.daemon|Cannot run program|PYTHON_VERSION_MISMATCH"
    r"|No module named '(?:tidewheel|pyspark|msgspec|rocksdict)"
)

#: What Py4J says first, which tells nothing, and what went wrong, the innermost last.
_CALLING: Final = "An error occurred while calling"
_CAUSE: Final = re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)*([\w$]+(?:: .*)?)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Refused:
    """An error of ours on an executor, which would only come again: it is brought back as a value, not tried anew."""

    message: str


@contextlib.contextmanager
def spark_session(
    existing: SparkSession | None = None,
    *,
    name: str,
    master: str | None = None,
    java_home: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> Generator[SparkSession]:
    """Yield a session: the caller's own, which stays as it is, or a new one, which is stopped afterwards.

    Args:
        existing: The caller's session.
        name: What Spark calls a new one.
        master: Where a new one works; None for this machine, or for what spark-submit was told.
        java_home: A Java for a new one, where the environment names none.
        settings: More of Spark's settings for a new one; they win over ours.

    Raises:
        StreamsError: Spark could not start; says what to do.
    """
    if existing is not None:
        yield existing
        return
    session, is_new = start_session(
        name=name, master=master, java_home=java_home, settings=settings
    )
    try:
        yield session
    finally:
        if is_new:
            session.stop()


def start_session(
    *,
    name: str,
    master: str | None = None,
    java_home: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> tuple[SparkSession, bool]:
    """Return the session that is active here, or a new one, and whether it is new; see `spark_session`."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active, False
    if java_home is not None:
        os.environ.setdefault("JAVA_HOME", str(java_home))
    # Executors on this machine take this Python; PySpark looks nowhere else for it.
    if is_local(master or LOCAL_MASTER):
        os.environ.setdefault(_PYTHON, sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None or _SUBMITTED not in os.environ:
        builder = builder.master(master or LOCAL_MASTER)
    for key, value in {**_own_settings(master), **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate(), True
    except (PySparkException, Py4JError) as error:
        raise StreamsError(
            f"Spark could not start with master {master or LOCAL_MASTER}: {_first_line(str(error))}; it needs Java 17 or newer "
            "(set JAVA_HOME, or pip install 'tidewheel[java]') and, elsewhere than here, a master that can be reached"
        ) from error


def _own_settings(master: str | None) -> dict[str, str]:
    """Return what suits us in a session of our own: nobody listens, nobody from elsewhere reaches a local one."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A bulk task writes files of its own, so a second copy of a slow one would only read everything twice.
        "spark.speculation": "false",
        "spark.sql.shuffle.partitions": str(max(os.cpu_count() or 1, 2)),
    }
    if is_local(master or LOCAL_MASTER):
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        }
    return settings


def is_local(master: str) -> bool:
    """Return whether all of Spark's processes run on this machine, as this user.

    >>> is_local("local[2]"), is_local("local-cluster[2,1,1024]"), is_local("spark://host:7077")
    (True, True, False)
    """
    return master == "local" or master.startswith(("local[", "local-cluster["))


def runs_here(session: SparkSession) -> bool:
    """Return whether the executors of a session run on this machine, as this user."""
    return is_local(session.sparkContext.master or "")


def is_encrypted(session: SparkSession) -> bool:
    """Return whether what a session sends to its executors is encrypted on the way."""
    conf = session.sparkContext.getConf()
    return any(conf.get(name, "false") == "true" for name in _ENCRYPTING)


def cores(session: SparkSession) -> int:
    """Return how many tasks a session runs at once, as far as it knows."""
    return max(session.sparkContext.defaultParallelism, 1)


class Running(Generic[Item, Result]):
    """A function as a Spark task calls it."""

    def __init__(
        self, function: Callable[[Item, Counted], Result], count: Callable[[int], None]
    ) -> None:
        self._function = function
        self._count = count

    def __call__(self, item: Item) -> Result | Refused:
        """Run it on one item."""
        try:
            return self._function(item, self._count)
        except StreamsError as error:
            return Refused(str(error))


def run_on_executors(
    session: SparkSession,
    function: Callable[[Item, Counted], Result],
    items: Sequence[Item],
    *,
    what: str,
    on_progress: Callable[[int], None] | None = None,
) -> list[Result]:
    """Return what `function` returns for each item, in their order; each is a Spark task.

    Args:
        session: The session.
        function: Takes an item and a function to be told counts of records by. Spark may run it twice for an item and
            use either result. It and the items travel as PySpark's serialiser makes them.
        items: What to work on.
        what: For Spark's own displays and for messages; no secret.
        on_progress: Told now and then, in another thread, how many records were counted so far.

    Raises:
        StreamsError: A task raised one, or Spark gave up on a task.
    """
    if not items:
        return []
    context: SparkContext = session.sparkContext
    counter = context.accumulator(0)
    tasks = context.parallelize(items, len(items)).map(Running(function, counter.add))
    return collected(tasks, lambda: counter.value, what=what, on_progress=on_progress)


def collected(
    tasks: "RDD[Result | Refused]",
    counted: Callable[[], int],
    *,
    what: str,
    on_progress: Callable[[int], None] | None = None,
) -> list[Result]:
    """Return what tasks return; see `run_on_executors`. `counted` tells how many records were counted so far."""
    context = tasks.context
    context.setJobDescription(what)
    try:
        with _told(counted, on_progress):
            results = tasks.collect()
    except (PySparkException, Py4JError) as error:
        raise StreamsError(
            f"{what}: Spark gave up on a task: {reason_of(error)}; {next_step(str(error))}"
        ) from error
    finally:
        context.setJobDescription(None)  # type: ignore[arg-type] # None takes it away, as the JVM's own method says
    return [_result(each) for each in results]


def next_step(text: str) -> str:
    """Return how to go on after Spark gave up on a task with this text."""
    if _OTHER_PYTHON.search(text):
        return (
            f"executors start another Python than this one: set {_PYTHON} to one that has Tidewheel, such as {sys.executable}, "
            "before the session begins"
        )
    return "run it again, what is done is used"


def _result(result: Result | Refused) -> Result:
    if isinstance(result, Refused):
        raise StreamsError(result.message)
    return result


@contextlib.contextmanager
def _told(value: Callable[[], int], on_progress: Callable[[int], None] | None) -> Generator[None]:
    """Tell of progress while the body runs, and once after it."""
    if on_progress is None:
        yield
        return
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(_PROGRESS_S):
            on_progress(value())

    teller = threading.Thread(target=tell, name="tidewheel-spark-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        on_progress(value())


def frame_from_executors(
    session: SparkSession,
    function: Callable[[Item], Iterable[tuple[Any, ...]]],
    items: Sequence[Item],
    *,
    columns: Mapping[str, str],
) -> DataFrame:
    """Return a frame of the rows that `function` yields for each item; it runs when the frame is used.

    Args:
        session: The session.
        function: Yields tuples that fit the columns.
        items: What to work on, a Spark partition each.
        columns: Name and type of each column, as Spark's DDL spells types.
    """
    schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    rows = session.sparkContext.parallelize(items, max(len(items), 1)).mapPartitions(
        partial(_rows, function)
    )
    return session.createDataFrame(rows, schema)


def _rows(
    function: Callable[[Item], Iterable[tuple[Any, ...]]], items: Iterable[Item]
) -> Iterator[tuple[Any, ...]]:
    for item in items:
        yield from function(item)


def reason_of(error: BaseException) -> str:
    r"""Return the last line of a task's traceback, or what Spark says was wrong, or the first line of its message.

    URLs in it are without what may be secret.

    >>> reason_of(ValueError("thrown\nTraceback (most recent call last):\n  File x\n    f()\nOSError: disk full\n"))
    'OSError: disk full'
    >>> reason_of(ValueError("An error occurred.\n: Aborted\nCaused by: o.a.S: [BAD_RECORD] Malformed: [a]. \n\tat x"))
    '[BAD_RECORD] Malformed: [a].'
    >>> reason_of(ValueError("An error occurred while calling o1.load.\n: a.b.RuntimeException: a.Missing: S3A\n\tat x"))
    'RuntimeException: a.Missing: S3A'
    """
    text = shown_text(str(error))
    _, _, traceback = text.partition(_TRACEBACK)
    lines = traceback.split("\n\n", 1)[0].splitlines()[1:]
    told = [line for line in lines if line and not line.startswith((" ", "\t"))]
    if told:
        return told[-1]
    conditions: list[str] = _CONDITION.findall(text)
    if not conditions and text.startswith(_CALLING):
        conditions = _CAUSE.findall(text)
    return conditions[-1].strip() if conditions else _first_line(text)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
