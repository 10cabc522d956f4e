import pytest

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
    StoreLockedError,
    StreamsError,
    TopologyError,
)
from tidewheel.streams.exit_codes import ExitCode, exit_code_of
from tidewheel.tasks.errors import OutdatedGrantError, StartRefusedError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(""), ExitCode.USAGE),
        (TopologyError(""), ExitCode.USAGE),
        (RecordFailedError(""), ExitCode.RECORD_FAILED),
        (FencedError(""), ExitCode.FENCED),
        (IncompatibleMemberError(""), ExitCode.INCOMPATIBLE_MEMBER),
        (ApplicationShutdownError(""), ExitCode.APPLICATION_SHUTDOWN),
        (MissingSourceTopicError(""), ExitCode.MISSING_SOURCE_TOPIC),
        (MissingOutputTopicError(""), ExitCode.MISSING_OUTPUT_TOPIC),
        (InternalTopicError(""), ExitCode.INTERNAL_TOPICS),
        (CopartitioningError(""), ExitCode.COPARTITIONING),
        (StoreLockedError(""), ExitCode.REFUSED),
        (StartRefusedError(""), ExitCode.START_REFUSED),
        (OutdatedGrantError(""), ExitCode.FAILED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (StreamsError(""), ExitCode.FAILED),
        (ZeroDivisionError(), ExitCode.FAILED),
    ],
)
def test_every_kind_of_error_has_its_code(error: BaseException, code: ExitCode) -> None:
    assert exit_code_of(error) is code


class _ClientError:
    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name


@pytest.mark.parametrize(
    ("name", "code"),
    [("_TRANSPORT", ExitCode.KAFKA_UNREACHABLE), ("TOPIC_AUTHORIZATION_FAILED", ExitCode.FAILED)],
)
def test_an_unreachable_cluster_has_its_own_exit_code(name: str, code: ExitCode) -> None:
    error = StreamsError("list topics")
    error.__cause__ = Exception(_ClientError(name))
    assert exit_code_of(error) is code


def test_a_request_without_an_answer_shows_an_unreachable_cluster() -> None:
    error = StreamsError("describe topics")
    error.__cause__ = TimeoutError()
    assert exit_code_of(error) is ExitCode.KAFKA_UNREACHABLE


def test_only_errors_that_a_restart_cannot_mend_are_final() -> None:
    assert {code for code in ExitCode if code.is_final} == {
        ExitCode.USAGE,
        ExitCode.FENCED,
        ExitCode.MISSING_SOURCE_TOPIC,
        ExitCode.MISSING_OUTPUT_TOPIC,
        ExitCode.INCOMPATIBLE_MEMBER,
        ExitCode.APPLICATION_SHUTDOWN,
        ExitCode.INTERNAL_TOPICS,
        ExitCode.STORED_ROW,
    }
