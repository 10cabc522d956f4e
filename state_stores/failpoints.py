"""Failpoints: named places where a test lets this process die, stop, fail or wait.

`FAILPOINT=before_commit:3:kill9` in the environment strikes before the third commit.
"""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidewheel.state_stores.errors import StreamsError

_log = logging.getLogger(__name__)

_NAMES: Final = re.compile(
    r"""(before|after)_(produce|extend|apply|ingest)
    | before_(flush|offsets|commit) | after_(offsets_ahead|commit)
    | (before|in|after)_sink_flush
    | processed_while_(opening|open|committing|answered)
    | (sent|appending|appended)_[A-Z_]+""",
    re.VERBOSE,
)
_SPELLING: Final = "FAILPOINT=name:nth:action[,...], with kill9, stop, raise, sleep=S or kill9=S"


class FailpointError(Exception):
    """The action `raise`."""


@dataclass(slots=True)
class _Failpoint:
    left: int
    strike: Callable[[], None]


_armed: dict[str, _Failpoint] = {}


def reach(name: str, *labels: object) -> None:
    """Reach the failpoint `name`, or `name_LABEL` for each label."""
    for each in [f"{name}_{label}" for label in labels] or [name]:
        _reach(each)


#: Without FAILPOINT a C function that ignores its arguments.
failpoint: Callable[..., object] = reach if "FAILPOINT" in os.environ else "".format


def arm(text: str) -> None:
    """Arm failpoints; raise StreamsError for an unknown name or action."""
    for part in filter(None, text.split(",")):
        name, _, rest = part.partition(":")
        nth, _, action = rest.partition(":")
        strike = _strike(name, action)
        if _NAMES.fullmatch(name) is None or not nth.isdecimal() or not int(nth) or strike is None:
            raise StreamsError(f"{part!r} is no failpoint; write {_SPELLING}")
        if failpoint is not reach:
            raise StreamsError("set FAILPOINT before the program starts")
        _armed[name] = _Failpoint(int(nth), strike)
        _log.warning("failpoint %s is armed", part)


def _reach(name: str) -> None:
    armed = _armed.get(name)
    if armed is None:
        return
    armed.left -= 1
    if armed.left == 0:
        armed.strike()


def _strike(name: str, action: str) -> Callable[[], None] | None:
    kind, _, seconds = action.partition("=")
    try:
        delay_s = float(seconds or "0")
    except ValueError:
        delay_s = -1.0
    if not 0 <= delay_s <= threading.TIMEOUT_MAX:
        return None
    match kind:
        case "kill9" if delay_s:
            return threading.Timer(delay_s, partial(os.kill, os.getpid(), signal.SIGKILL)).start
        case "kill9" | "stop":
            number = signal.SIGKILL if kind == "kill9" else signal.SIGSTOP
            # To this thread: after a signal to the process it would run on.
            return lambda: signal.pthread_kill(threading.get_ident(), number)
        case "sleep" if delay_s:
            return partial(time.sleep, delay_s)
        case "raise":
            return partial(_raise, name)
        case _:
            return None


def _raise(name: str) -> None:
    raise FailpointError(f"failpoint {name}")


def _problem_of_environment() -> str:
    try:
        arm(os.environ.get("FAILPOINT", ""))
    except StreamsError as error:
        return f"environment variable FAILPOINT: {error}, or unset the variable"
    return ""


#: Error in FAILPOINT's value. An import must not raise it: another program's variable may have
#: the same name.
_problem: Final = _problem_of_environment()


def check_failpoints() -> None:
    """Raise StreamsError if the environment's FAILPOINT has an unknown name or action."""
    if _problem:
        raise StreamsError(_problem)
