"""Exit codes of `tidewheel` commands, by error.

Codes are public interface: a number never changes its meaning.
"""

from enum import IntEnum
from typing import Final

from tidewheel.streams.errors import (
    ApplicationShutdownError,
    ConfigError,
    CopartitioningError,
    FencedError,
    IncompatibleMemberError,
    InternalTopicError,
    MissingOutputTopicError,
    MissingSourceTopicError,
    RecordFailedError,
    RefusedError,
    StoredRowError,
    StoreLockedError,
    TopologyError,
)
from tidewheel.tasks.errors import OutdatedGrantError, StartRefusedError


class ExitCode(IntEnum):
    """Result of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    RECORD_FAILED = 3
    FENCED = 4
    MISSING_SOURCE_TOPIC = 5
    CRASH_LOOP = 6
    KAFKA_UNREACHABLE = 7
    NOT_STOPPED_IN_TIME = 8
    REFUSED = 9
    MISSING_OUTPUT_TOPIC = 10
    INCOMPATIBLE_MEMBER = 11
    APPLICATION_SHUTDOWN = 12
    INTERNAL_TOPICS = 13
    COPARTITIONING = 14
    STORED_ROW = 15
    START_REFUSED = 16
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """Return the meaning in one sentence."""
        return _MEANINGS[self]

    @property
    def is_final(self) -> bool:
        """Return True if a restart would end the same way: the supervisor omits it."""
        return self in _FINAL


_MEANINGS: Final = {
    ExitCode.OK: "done, or stopped cleanly by SIGTERM or Ctrl-C",
    ExitCode.FAILED: "an unexpected error, or a wrong result",
    ExitCode.USAGE: "the command line, the settings or the topology are wrong",
    ExitCode.RECORD_FAILED: "a record failed and its exception handler answered fail (with --no-restart)",
    ExitCode.FENCED: "another live process took over this one's place (group_instance_id, or fixed tasks); never restarted",
    ExitCode.MISSING_SOURCE_TOPIC: "a source topic does not exist; never restarted",
    ExitCode.CRASH_LOOP: "five crashes on one offset; the message names topic, partition and offset",
    ExitCode.KAFKA_UNREACHABLE: "Kafka could not be reached (run: only with --no-restart)",
    ExitCode.NOT_STOPPED_IN_TIME: "a worker did not stop in time: killed after drain_timeout_ms, or still there (drain)",
    ExitCode.REFUSED: "refused, because something that still runs is in the way; the message names it",
    ExitCode.MISSING_OUTPUT_TOPIC: "a topic that is written to does not exist; never restarted",
    ExitCode.INCOMPATIBLE_MEMBER: "the topology, assignor, version or partition_shards does not fit the running group; never restarted",
    ExitCode.APPLICATION_SHUTDOWN: "a worker's uncaught exception handler has ended the whole application; never restarted",
    ExitCode.INTERNAL_TOPICS: "an internal topic has another number of partitions than is needed now; never restarted",
    ExitCode.COPARTITIONING: "topics whose keys come together have different numbers of partitions (run: only with --no-restart)",
    ExitCode.STORED_ROW: "a stored row can't be read by the serde of its store; never restarted",
    ExitCode.START_REFUSED: "the place where an input would start loses or repeats records (run: only with --no-restart)",
    ExitCode.INTERRUPTED: "a second Ctrl-C ended it immediately",
}

#: Crashes that a restart can't cure. A locked state directory is not among them: the worker that
#: holds it may be about to end.
_FINAL: Final = frozenset(
    {
        ExitCode.USAGE,
        ExitCode.FENCED,
        ExitCode.MISSING_SOURCE_TOPIC,
        ExitCode.MISSING_OUTPUT_TOPIC,
        ExitCode.INCOMPATIBLE_MEMBER,
        ExitCode.APPLICATION_SHUTDOWN,
        ExitCode.INTERNAL_TOPICS,
        ExitCode.STORED_ROW,
    }
)

_BY_ERROR: Final[tuple[tuple[type[BaseException], ExitCode], ...]] = (
    (ConfigError, ExitCode.USAGE),
    (TopologyError, ExitCode.USAGE),
    (RecordFailedError, ExitCode.RECORD_FAILED),
    (StoredRowError, ExitCode.STORED_ROW),
    (OutdatedGrantError, ExitCode.FAILED),
    (StartRefusedError, ExitCode.START_REFUSED),
    (FencedError, ExitCode.FENCED),
    (IncompatibleMemberError, ExitCode.INCOMPATIBLE_MEMBER),
    (ApplicationShutdownError, ExitCode.APPLICATION_SHUTDOWN),
    (MissingSourceTopicError, ExitCode.MISSING_SOURCE_TOPIC),
    (MissingOutputTopicError, ExitCode.MISSING_OUTPUT_TOPIC),
    (InternalTopicError, ExitCode.INTERNAL_TOPICS),
    (CopartitioningError, ExitCode.COPARTITIONING),
    (StoreLockedError, ExitCode.REFUSED),
    (RefusedError, ExitCode.REFUSED),
    (ConnectionError, ExitCode.KAFKA_UNREACHABLE),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
)

#: librdkafka's error names for an unreachable cluster.
_UNREACHABLE: Final = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT"})


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of an error.

    >>> exit_code_of(FencedError("taken over")).name
    'FENCED'
    """
    code = exit_code_of_class(type(error))
    return (
        ExitCode.KAFKA_UNREACHABLE if code is ExitCode.FAILED and _is_unreachable(error) else code
    )


def exit_code_of_class(kind: type[BaseException]) -> ExitCode:
    """Return the exit code of errors of a class, if no cause gives another.

    >>> exit_code_of_class(TopologyError).name
    'USAGE'
    """
    return next((code for base, code in _BY_ERROR if issubclass(kind, base)), ExitCode.FAILED)


def _is_unreachable(error: BaseException) -> bool:
    """Compare librdkafka's error names, so commands without Kafka need not import its client."""
    cause = error.__cause__
    if isinstance(cause, TimeoutError):
        return True
    if cause is None or not cause.args:
        return False
    name: object = getattr(cause.args[0], "name", None)
    return callable(name) and name() in _UNREACHABLE
