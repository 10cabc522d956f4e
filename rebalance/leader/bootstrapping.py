"""Group log transactions of `tidewheel bootstrap` and `backfill`, which load stores from outside.

For each step (begin, close, finish) the command claims the leadership: it writes its claim, a
snapshot and the step in one transaction. Meanwhile `GroupRecord.held` is set: any process can lead,
and members join but own no task. A killed command leaves the hold; the next run starts another
attempt.
"""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from tidewheel.rebalance.leader.log_steps import Claimant, log_step, without_members
from tidewheel.rebalance.model import BootstrapPhase
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.records import AnyRecord, BootstrappedRecord, BootstrapRecord

#: Prefix of `GroupRecord.held` texts of this module.
BOOTSTRAP_HOLD: Final = "bootstrap: "
#: Stands for the store in the records of `tidewheel backfill`, which loads all; no store's name.
EVERY_STORE: Final = "*"


def pending_in(group: Group, store: str) -> BootstrapRecord | None:
    record = group.bootstraps.get(store)
    return record if isinstance(record, BootstrapRecord) else None


def is_current(group: Group, store: str, attempt: str) -> bool:
    """Return True if this run of the command (`attempt`) is the latest and not over.

    Initialise the transactional producer before: only then can a later run's producer fence it.
    """
    record = pending_in(group, store)
    return (
        record is not None
        and record.attempt == attempt
        and group.about.held.startswith(BOOTSTRAP_HOLD)
    )


def may_write(group: Group, store: str, attempt: str) -> bool:
    """Return True if this run is current, and its rows may be written."""
    record = pending_in(group, store)
    return (
        record is not None
        and record.phase == BootstrapPhase.WRITING.value
        and is_current(group, store, attempt)
    )


def load_hold_text(store: str) -> str:
    """Return the reason why the group is held, with the next step.

    >>> load_hold_text("counts")[:44]
    'bootstrap: store counts is being loaded and '
    """
    what, command = _shown(store)
    return (
        f"{BOOTSTRAP_HOLD}{what} being loaded and not complete; members wait until `{command}` has finished. If it was "
        "killed, run it again"
    )


def _shown(store: str) -> tuple[str, str]:
    """Return what is loaded, with its verb, and the command."""
    if store == EVERY_STORE:
        return "all stores are", "tidewheel backfill"
    return f"store {store} is", f"tidewheel bootstrap {store}"


def objections(group: Group, store: str, speaking: Iterable[str]) -> list[str]:
    """Return reasons against starting a load; `speaking` are members heard lately.

    While a killed run's load is pending, members may be alive: they wait and own no task.
    """
    other_loads = sorted(
        name
        for name, record in group.bootstraps.items()
        if name != store and isinstance(record, BootstrapRecord)
    )
    reasons = [
        f"{what} being loaded and not complete; finish that first: run `{command}` again"
        for what, command in map(_shown, other_loads)
    ]
    if pending_in(group, store) is not None:
        return reasons
    names = sorted(speaking)
    if names:
        reasons.append(f"members of the group are alive: {', '.join(names)}; stop them first")
    hold = group.about.held
    if hold and not hold.startswith(BOOTSTRAP_HOLD):
        reasons.append(f"the group decides nothing: {hold}; fix that first")
    return reasons


def begin_load(group: Group, record: BootstrapRecord, claimant: Claimant) -> list[AnyRecord]:
    """Return the transaction that starts an attempt; its epoch is the next leader epoch.

    A first attempt removes the logged members, which the caller has fenced. Later ones keep members
    that joined since: these own no task.
    """
    waits = pending_in(group, record.store) is not None
    cleared = group if waits else without_members(group, "a store is being loaded from outside")
    return log_step(
        replace(
            cleared,
            about=replace(group.about, held=load_hold_text(record.store)),
            bootstraps={**group.bootstraps, record.store: record},
        ),
        claimant,
    )


def close_load(group: Group, store: str, attempt: str, claimant: Claimant) -> list[AnyRecord]:
    """Return the transaction that writes CLOSING, after which no writer can start.

    Raises:
        ValueError: The attempt is not the current one.
    """
    record = _current_attempt(group, store, attempt)
    last = replace(record, phase=BootstrapPhase.CLOSING.value)
    return log_step(replace(group, bootstraps={**group.bootstraps, store: last}), claimant)


def finish_load(group: Group, record: BootstrappedRecord, claimant: Claimant) -> list[AnyRecord]:
    """Return the transaction that ends the load and lets the group decide again.

    Raises:
        ValueError: The attempt is not the current one.
    """
    _current_attempt(group, record.store, record.attempt)
    return log_step(
        replace(
            group,
            about=replace(group.about, held=""),
            bootstraps={**group.bootstraps, record.store: record},
        ),
        claimant,
    )


def _current_attempt(group: Group, store: str, attempt: str) -> BootstrapRecord:
    record = pending_in(group, store)
    if record is None or record.attempt != attempt:
        raise ValueError(
            f"another run of `{_shown(store)[1]}` has taken over from this one, and its rows count"
        )
    if not group.about.held.startswith(BOOTSTRAP_HOLD):
        raise ValueError(
            f"the group resumed while {_shown(store)[0]} being loaded; stop its members and run the command again"
        )
    return record
