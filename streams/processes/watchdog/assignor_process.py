"""Task assignors: built-in ones run in the watchdog, a user's in a child with a time limit.

User code may loop or crash, which would stop the heartbeats of all the watchdog's members. The
child reads an assignment request from standard input and writes the answer to standard output. The
user's own output goes to standard error.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tidewheel.rebalance.assignors.builtin import resolve
from tidewheel.rebalance.assignors.task_assignor import (
    Assignment,
    AssignmentMember,
    AssignmentRequest,
    validated,
)
from tidewheel.rebalance.model import TaskId, TaskShape
from tidewheel.rebalance.protocol.plain_text import plain_text
from tidewheel.state_stores.user_code import located
from tidewheel.streams.config.names import import_object
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.processes.child import UNREADABLE

_COMMAND: Final = (sys.executable, "-m", "tidewheel.streams.processes.watchdog.assignor_process")

#: Terminal escape sequences, removed from errors: colours, cursor movement, window title.
_ESCAPES: Final = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?")


class _Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An `AssignmentMember` with task ids as text."""

    name: str
    threads: int = 1
    host: str = ""
    rack: str | None = None
    tags: dict[str, str] = {}
    owned: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    on_disk: tuple[str, ...] = ()
    lags: dict[str, int] = {}


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    """The child's input: an `AssignmentRequest` and the assignor's import path."""

    number: int
    members: tuple[_Member, ...]
    tasks: dict[str, TaskShape]
    num_standby_replicas: int
    acceptable_recovery_lag: int
    assignor: str
    import_path: tuple[str, ...]


class _ChildOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The child's output; `error` is set if there is no assignment."""

    owners: dict[str, str] = {}
    standbys: dict[str, tuple[str, ...]] = {}
    error: str = ""


class AssignorFailedError(StreamsError):
    """A user's assignor raised, timed out, or returned an invalid assignment."""


class Assignors:
    """Computes assignments with the configured assignor.

    Args:
        assignor: Its name; `assign` imports no other, because group messages could name any code.
        timeout_s: Limit for a user's assignor.
        import_path: More folders to import it from.
    """

    def __init__(self, assignor: str, timeout_s: float, import_path: Sequence[str]) -> None:
        self._assignor = assignor
        self._timeout_s = timeout_s
        self._import_path = tuple(import_path)

    def assign(self, request: AssignmentRequest) -> Assignment:
        if request.assignor != self._assignor:
            raise AssignorFailedError(
                f"task_assignor {request.assignor!r} is not the one that this process was started with "
                f"({self._assignor!r}); it imports no other"
            )
        if ":" in request.assignor:
            answer = self._ask_child(request)
        else:
            answer = resolve(request.assignor).assign(request)
        return validated(request, answer)

    def _ask_child(self, request: AssignmentRequest) -> Assignment:
        question = msgspec.json.encode(_question(request, self._import_path))
        try:
            child = subprocess.run(  # noqa: S603 - our own program, without a shell
                _COMMAND,
                input=question,
                stdout=subprocess.PIPE,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise AssignorFailedError(
                f"task_assignor {request.assignor} took more than {self._timeout_s:g} s and was ended"
            ) from None
        try:
            answer = msgspec.json.decode(child.stdout, type=_ChildOutput)
        except UNREADABLE:
            raise AssignorFailedError(
                f"task_assignor {request.assignor}: its process ended with code {child.returncode} and no answer"
            ) from None
        if answer.error:
            raise AssignorFailedError(
                f"task_assignor {request.assignor}: {_on_one_line(answer.error)}"
            )
        return Assignment(
            owners={TaskId.parse(task): member for task, member in answer.owners.items()},
            standbys={TaskId.parse(task): members for task, members in answer.standbys.items()},
        )


def _on_one_line(text: str) -> str:
    r"""Return an error text on one line, without sequences that control a reader's terminal.

    >>> _on_one_line("\x1b[1;31mno\x1b[0m such\n  rack\x07")
    'no such rack'
    """
    plain = _ESCAPES.sub("", text)
    return " ".join(plain_text(plain).split())


def _question(request: AssignmentRequest, import_path: tuple[str, ...]) -> _Question:
    return _Question(
        number=request.number,
        members=tuple(
            _Member(
                name=member.name,
                threads=member.threads,
                host=member.host,
                rack=member.rack,
                tags=dict(member.tags),
                owned=tuple(map(str, sorted(member.owned))),
                copies=tuple(map(str, sorted(member.copies))),
                on_disk=tuple(map(str, sorted(member.on_disk))),
                lags={str(task): lag for task, lag in sorted(member.lags.items())},
            )
            for member in request.members
        ),
        tasks={str(task): shape for task, shape in sorted(request.tasks.items())},
        num_standby_replicas=request.num_standby_replicas,
        acceptable_recovery_lag=request.acceptable_recovery_lag,
        assignor=request.assignor,
        import_path=import_path,
    )


def _request(question: _Question) -> AssignmentRequest:
    return AssignmentRequest(
        number=question.number,
        members=tuple(
            AssignmentMember(
                name=member.name,
                threads=member.threads,
                host=member.host,
                rack=member.rack,
                tags=member.tags,
                owned=frozenset(map(TaskId.parse, member.owned)),
                copies=frozenset(map(TaskId.parse, member.copies)),
                on_disk=frozenset(map(TaskId.parse, member.on_disk)),
                lags={TaskId.parse(task): lag for task, lag in member.lags.items()},
            )
            for member in question.members
        ),
        tasks={TaskId.parse(task): shape for task, shape in question.tasks.items()},
        num_standby_replicas=question.num_standby_replicas,
        acceptable_recovery_lag=question.acceptable_recovery_lag,
        assignor=question.assignor,
    )


def _answer(question: _Question) -> _ChildOutput:
    """Call the user's assignor in the child: an object, its class, or a function of the request."""
    sys.path += [folder for folder in question.import_path if folder not in sys.path]
    request = _request(question)
    try:
        factory: Any = import_object(question.assignor)
        assignor = factory() if isinstance(factory, type) else factory
        ask = getattr(assignor, "assign", assignor)
        result: Any = ask(request)
        if not isinstance(result, Assignment):
            return _ChildOutput(error=f"it returned {result!r:.200}; return an Assignment")
        assignment = validated(request, result)
    except ConfigError as error:
        return _ChildOutput(error=str(error))
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the error is the answer
        return _ChildOutput(error=located(error))
    return _ChildOutput(
        owners={str(task): member for task, member in assignment.owners.items()},
        standbys={str(task): members for task, members in assignment.standbys.items()},
    )


def main() -> None:
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    answer = _answer(msgspec.json.decode(sys.stdin.buffer.read(), type=_Question))
    with os.fdopen(answers, "wb") as pipe:
        pipe.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
