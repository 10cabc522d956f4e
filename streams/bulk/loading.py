"""Loads that hold a group: reasons against them, their steps, and reports of a hold that stays."""

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.group_log_writer import GroupLogWriter
from tidewheel.streams.group.reset import ResetAdmin, local_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkStep:
    """Report of a step of a bootstrap or backfill."""

    phase: str
    text: str


#: Callback for steps.
OnStep = Callable[[BulkStep], None]


def objections_to_members(admin: ResetAdmin, application_id: str) -> list[str]:
    """Return a reason against a load if the application's consumer group has members."""
    members = admin.group_members(application_id)
    if not members:
        return []
    return [
        f"consumer group {application_id} has {len(members)} subscribed members: {', '.join(members)}; stop them first"
    ]


def workers_here(config: StreamsConfig) -> list[str]:
    """Return a problem text per local state folder in use, also by workers outside the group."""
    slots = local_slots(config.state_dir, config.application_id)
    return [slot.problem for slot in slots if slot.problem]


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
