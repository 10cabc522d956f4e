"""Loads that hold a group: their steps, and the report of a hold that a failure leaves."""

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.group_log_writer import GroupLogWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkStep:
    """Report of a step of a bootstrap or backfill."""

    phase: str
    text: str


#: Callback for steps.
OnStep = Callable[[BulkStep], None]


@contextmanager
def hold_reported(
    group_log: GroupLogWriter,
    store: str,
    attempt: str,
    *,
    held: str,
    taken_over: str,
    on_step: OnStep,
) -> Generator[None]:
    """Add to a failure of the block which run holds the group.

    Args:
        held: Text if it is this attempt, or if the group log can't be read.
        taken_over: Text if a later attempt has taken over the load.
    """
    try:
        yield
    except StreamsError as error:
        holder = held
        with suppress(StreamsError):  # The cluster itself may have failed.
            last = group_log.group(decided=True).bootstraps.get(store)
            if last is not None and last.attempt != attempt:
                holder = taken_over
        raise StreamsError(f"{error}. {holder}") from error
    except KeyboardInterrupt:
        on_step(BulkStep(phase="held", text=held))
        raise
