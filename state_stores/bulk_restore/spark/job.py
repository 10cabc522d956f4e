"""Spark sessions, and functions on executors, which need the pip packages only."""

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

from tidewheel.state_stores.bulk_restore.urls import redacted_text
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

#: Reports the number of records read since the last call.
Counted = Callable[[int], None]

LOCAL_MASTER: Final = "local[*]"

#: Environment variable that spark-submit sets; its master and settings apply then.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"

_PYTHON: Final = "PYSPARK_PYTHON"

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

_ENCRYPTING: Final = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")

_PROGRESS_S: Final = 0.5

#: Java exceptions contain the Python traceback; its last line has the reason.
_TRACEBACK: Final = "Traceback (most recent call last)"

#: Spark's error conditions in a Java stack trace; that of the innermost cause is last.
_CONDITION: Final = re.compile(r"^(?:Caused by)?: [\w.$]+: (\[[A-Z][A-Z0-9_.]+\] .*)", re.MULTILINE)

#: Error texts of executors whose Python does not start or lacks our modules.
_OTHER_PYTHON: Final = re.compile(
    r"pyspark\.daemon|Cannot run program|PYTHON_VERSION_MISMATCH"
    r"|No module named '(?:tidewheel|pyspark|msgspec|rocksdict)"
)

#: Py4J's first line has no information; the innermost cause is last.
_CALLING: Final = "An error occurred while calling"
_CAUSE: Final = re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)*([\w$]+(?:: .*)?)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ExecutorError:
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
    """Yield the caller's session unchanged, or a new one, which is stopped afterwards.

    `settings` override those of `_own_settings`.

    Raises:
        StreamsError: Spark could not start.
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
            # Its process may have ended first, such as by the same Ctrl-C.
            with contextlib.suppress(Py4JError, OSError):
                session.stop()


def start_session(
    *,
    name: str,
    master: str | None = None,
    java_home: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> tuple[SparkSession, bool]:
    """Return the active or a new session, and True if it is new."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active, False
    if java_home is not None:
        os.environ.setdefault("JAVA_HOME", str(java_home))
    # Local executors use this Python; PySpark reads only this variable.
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
            "(set JAVA_HOME, or pip install 'tidewheel[java]') and, except on this machine, a reachable master"
        ) from error


def _own_settings(master: str | None) -> dict[str, str]:
    """Return our defaults: no web interface, and local sessions listen on 127.0.0.1 only."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark's speculative copy of a slow task would only read everything again.
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
    """Return True if all Spark processes run on this machine as this user.

    >>> is_local("local[2]"), is_local("local-cluster[2,1,1024]"), is_local("spark://host:7077")
    (True, True, False)
    """
    return master == "local" or master.startswith(("local[", "local-cluster["))


def runs_here(session: SparkSession) -> bool:
    return is_local(session.sparkContext.master or "")


def is_encrypted(session: SparkSession) -> bool:
    conf = session.sparkContext.getConf()
    return any(conf.get(name, "false") == "true" for name in _ENCRYPTING)


def cores(session: SparkSession) -> int:
    return max(session.sparkContext.defaultParallelism, 1)


class Running(Generic[Item, Result]):
    def __init__(
        self, function: Callable[[Item, Counted], Result], count: Callable[[int], None]
    ) -> None:
        self._function = function
        self._count = count

    def __call__(self, item: Item) -> Result | ExecutorError:
        try:
            return self._function(item, self._count)
        except StreamsError as error:
            return ExecutorError(str(error))


def run_on_executors(
    session: SparkSession,
    function: Callable[[Item, Counted], Result],
    items: Sequence[Item],
    *,
    description: str,
    on_progress: Callable[[int], None] | None = None,
) -> list[Result]:
    """Return the results of `function` in the order of the items; each is a Spark task.

    Spark may run it twice per item. `on_progress` gets the number of records, in another thread.
    Errors show `what`, so it must hold no secret.

    Raises:
        StreamsError: A task raised one, or Spark abandoned a task.
    """
    if not items:
        return []
    context: SparkContext = session.sparkContext
    counter = context.accumulator(0)
    tasks = context.parallelize(items, len(items)).map(Running(function, counter.add))
    return collected(tasks, lambda: counter.value, description=description, on_progress=on_progress)


def collected(
    tasks: "RDD[Result | ExecutorError]",
    counted: Callable[[], int],
    *,
    description: str,
    on_progress: Callable[[int], None] | None = None,
) -> list[Result]:
    context = tasks.context
    context.setJobDescription(description)
    try:
        with _progress_reported(counted, on_progress):
            results = tasks.collect()
    except (PySparkException, Py4JError) as error:
        raise StreamsError(
            f"{description}: Spark gave up on a task: {reason_of(error)}; {next_step(str(error))}"
        ) from error
    finally:
        context.setJobDescription(None)  # type: ignore[arg-type] # None removes it
    return [_result(result) for result in results]


def next_step(text: str) -> str:
    if _OTHER_PYTHON.search(text):
        return (
            f"executors start another Python than this one: set {_PYTHON} to one that has Tidewheel, such as {sys.executable}, "
            "before the session begins"
        )
    return "run it again"


def _result(result: Result | ExecutorError) -> Result:
    if isinstance(result, ExecutorError):
        raise StreamsError(result.message)
    return result


@contextlib.contextmanager
def _progress_reported(
    value: Callable[[], int], on_progress: Callable[[int], None] | None
) -> Generator[None]:
    if on_progress is None:
        yield
        return
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(_PROGRESS_S):
            on_progress(value())

    teller = threading.Thread(target=report, name="tidewheel-spark-progress", daemon=True)
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
    """Return a lazy frame of the rows of `function`, with a Spark partition per item.

    `columns` has Spark DDL types by name.
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
    r"""Return the best line of an error, without secrets.

    Preferred: last line of a Python traceback, `[CONDITION] text` of Spark, Java cause, first line.

    >>> reason_of(ValueError("thrown\nTraceback (most recent call last):\n  File x\n    f()\nOSError: disk full\n"))
    'OSError: disk full'
    >>> reason_of(ValueError("An error occurred.\n: Aborted\nCaused by: o.a.S: [BAD_RECORD] Malformed: [a]. \n\tat x"))
    '[BAD_RECORD] Malformed: [a].'
    >>> reason_of(ValueError("An error occurred while calling o1.load.\n: a.b.RuntimeException: a.Missing: S3A\n\tat x"))
    'RuntimeException: a.Missing: S3A'
    """
    text = redacted_text(str(error))
    _, _, traceback = text.partition(_TRACEBACK)
    lines = traceback.split("\n\n", 1)[0].splitlines()[1:]
    reasons = [line for line in lines if line and not line.startswith((" ", "\t"))]
    if reasons:
        return reasons[-1]
    conditions: list[str] = _CONDITION.findall(text)
    if not conditions and text.startswith(_CALLING):
        conditions = _CAUSE.findall(text)
    return conditions[-1].strip() if conditions else _first_line(text)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
