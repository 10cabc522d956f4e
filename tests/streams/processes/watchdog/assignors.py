"""Good and bad assignors of a user."""

import sys
import time

from tidewheel.rebalance.assignors.task_assignor import Assignment, AssignmentRequest


class EverythingToTheLast:
    name = "last"

    def assign(self, request: AssignmentRequest) -> Assignment:
        print("what a user prints is no answer")  # noqa: T201 - as users do
        last = max(member.name for member in request.members)
        return Assignment(owners=dict.fromkeys(request.tasks, last))


def to_the_first(request: AssignmentRequest) -> Assignment:
    """Assign every task to the first member, with standbys at all others."""
    first, *others = sorted(member.name for member in request.members)
    standbys = {task: tuple(others) for task, shape in request.tasks.items() if shape.stateful}
    return Assignment(owners=dict.fromkeys(request.tasks, first), standbys=standbys)


def never(request: AssignmentRequest) -> Assignment:
    while request.members:
        time.sleep(0.1)
    return Assignment(owners={})


def broken(request: AssignmentRequest) -> Assignment:
    raise ZeroDivisionError(f"{len(request.members)} members")


class Unmade:
    def __init__(self) -> None:
        raise KeyError("RACKS")


def nothing(request: AssignmentRequest) -> None:
    Assignment(owners=dict.fromkeys(request.tasks, "a"))


def colourful(request: AssignmentRequest) -> Assignment:
    """Raise an error with terminal sequences."""
    raise ValueError(
        f"\x1b]0;title\x07\x1b[1;31m{len(request.members)} \x1b[0mmembers,\r\n\tno\x9b rack\x07"
    )


def to_a_stranger(request: AssignmentRequest) -> Assignment:
    return Assignment(owners=dict.fromkeys(request.tasks, "nobody"))


def crash(request: AssignmentRequest) -> Assignment:
    sys.exit(3 if request.members else 4)
