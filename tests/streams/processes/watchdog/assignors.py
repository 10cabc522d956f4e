"""Assignors of a user, good and bad, as `task_assignor` names them."""

import sys
import time

from tidewheel.rebalance.assignors.task_assignor import Assignment, AssignmentRequest


class EverythingToTheLast:
    """Gives every task to the member whose name is last."""

    name = "last"

    def assign(self, request: AssignmentRequest) -> Assignment:
        """Return that."""
        print("what a user prints is no answer")  # noqa: T201 - as users do
        last = max(member.name for member in request.members)
        return Assignment(owners=dict.fromkeys(request.tasks, last))


def to_the_first(request: AssignmentRequest) -> Assignment:
    """Give every task to the member whose name is first, with a standby at each other one."""
    first, *others = sorted(member.name for member in request.members)
    standbys = {task: tuple(others) for task, shape in request.tasks.items() if shape.stateful}
    return Assignment(owners=dict.fromkeys(request.tasks, first), standbys=standbys)


def never(request: AssignmentRequest) -> Assignment:
    """Loop for ever."""
    while request.members:
        time.sleep(0.1)
    return Assignment(owners={})


def broken(request: AssignmentRequest) -> Assignment:
    """Raise."""
    raise ZeroDivisionError(f"{len(request.members)} members")


class Unmade:
    """Can't be made."""

    def __init__(self) -> None:
        raise KeyError("RACKS")


def nothing(request: AssignmentRequest) -> None:
    """Forget to return what was found."""
    Assignment(owners=dict.fromkeys(request.tasks, "a"))


def colourful(request: AssignmentRequest) -> Assignment:
    """Raise what a terminal would obey."""
    raise ValueError(
        f"\x1b]0;title\x07\x1b[1;31m{len(request.members)} \x1b[0mmembers,\r\n\tno\x9b rack\x07"
    )


def to_a_stranger(request: AssignmentRequest) -> Assignment:
    """Name a member that is not there."""
    return Assignment(owners=dict.fromkeys(request.tasks, "nobody"))


def crash(request: AssignmentRequest) -> Assignment:
    """End the process."""
    sys.exit(3 if request.members else 4)
