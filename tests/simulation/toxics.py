"""Faults: each kind is a function; the seed draws time and target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from tests.simulation.host import Host, MemberSettings
from tests.simulation.model.model_tasks import CopyTask
from tests.simulation.model.world import Process, incarnation_name
from tests.simulation.workload import TOMBSTONE_RETENTION_MS
from tidewheel.rebalance.leader.sharding import required_version
from tidewheel.rebalance.protocol.messages import PROTOCOL_MAX
from tidewheel.rebalance.protocol.records import AnyRecord, MemberRecord, TaskRecord

#: Retry interval of faults without a target.
STRIKE_AGAIN_MS = 200

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation


@dataclass(frozen=True, slots=True, order=True)
class Toxic:
    """One fault: time, kind, target (`draw`, 0 to 1), duration."""

    at_ms: int
    kind: str
    draw: float
    length_ms: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault."""

    strike: Callable[["Simulation", Toxic], bool]  # Executes it; returns True if it had a target.
    weight: int = 4  # Relative frequency.
    waits: bool = False  # It strikes, and counts, only later.


def pick(simulation: "Simulation", toxic: Toxic) -> Host | None:
    """Return the target: a running host, if there are at least two."""
    up = [each for each in simulation.hosts if each.up and each.worker.up]
    if len(up) < 2:
        return None
    return up[int(toxic.draw * len(up)) % len(up)]


def _leader(simulation: "Simulation") -> Host | None:
    for host in simulation.hosts:
        if host.up and host.leading is not None and host.leading.coordinator is not None:
            return host
    return None


def _kill(simulation: "Simulation", host: Host, toxic: Toxic) -> None:
    simulation.world.trace_event(f"{host.name} is killed")
    host.kill()
    _start_again(simulation, host, toxic)


def _start_again(simulation: "Simulation", host: Host, toxic: Toxic) -> None:
    if toxic.draw * 1000 % 1 < 0.85:
        simulation.start_later(host, 200 + toxic.length_ms)
    simulation.disturb(toxic.length_ms)


def kill_host(simulation: "Simulation", toxic: Toxic) -> bool:
    host = pick(simulation, toxic)
    if host is not None:
        _kill(simulation, host, toxic)
    return host is not None


def kill_leader(simulation: "Simulation", toxic: Toxic) -> bool:
    host = _leader(simulation)
    if host is not None:
        _kill(simulation, host, toxic)
    return host is not None


def kill_leader_at_a_bad_time(simulation: "Simulation", toxic: Toxic) -> bool:
    """Kill the leader after one of its next transactions, before it executes the effects."""
    simulation.kill_after_records = 1 + int(toxic.draw * 6)
    simulation.kill_toxic = toxic
    kind = ("FENCING", "FENCED", "TARGET", "STEP", "REVOKE", "RELEASED", "GRANT")
    simulation.kill_at = kind[int(toxic.draw * 997) % len(kind)]
    simulation.disturb(toxic.length_ms)
    return True


def stop_leader(simulation: "Simulation", toxic: Toxic) -> bool:
    """Stop the leader's watchdog by a signal; it resumes later."""
    host = _leader(simulation)
    if host is not None:
        _pause(simulation, [host], max(toxic.length_ms, 2_000))
    return host is not None


def _pause(simulation: "Simulation", processes: Sequence[Process], length_ms: int) -> None:
    simulation.disturb(length_ms)
    for process in processes:
        simulation.pause(process, length_ms)


def stop_worker(simulation: "Simulation", toxic: Toxic) -> bool:
    """Stop a worker, possibly beyond its hang timeout; it resumes."""
    host = pick(simulation, toxic)
    if host is not None:
        _pause(simulation, [host.worker], int(toxic.length_ms * 1.5))
    return host is not None


def stop_watchdog(simulation: "Simulation", toxic: Toxic) -> bool:
    """Stop a watchdog; its worker runs until its lease ends."""
    host = pick(simulation, toxic)
    if host is not None:
        _pause(simulation, [host], toxic.length_ms)
    return host is not None


def stop_host(simulation: "Simulation", toxic: Toxic) -> bool:
    """Stop watchdog and worker together; the worker resumes first."""
    host = pick(simulation, toxic)
    if host is not None:
        _pause(simulation, [host.worker], toxic.length_ms)
        _pause(simulation, [host], toxic.length_ms + int(toxic.draw * 10_000) % 1_200)
    return host is not None


def kill_worker(simulation: "Simulation", toxic: Toxic) -> bool:
    host = pick(simulation, toxic)
    if host is not None:
        simulation.world.trace_event(f"{host.worker.name} is killed")
        host.kill_worker()
        _start_again(simulation, host, toxic)
    return host is not None


def kill_watchdog(simulation: "Simulation", toxic: Toxic) -> bool:
    host = pick(simulation, toxic)
    if host is not None:
        simulation.world.trace_event(f"the watchdog of {host.name} is killed")
        host.restart_watchdog()
        simulation.disturb(1_000)
    return host is not None


def cut_off(simulation: "Simulation", toxic: Toxic) -> bool:
    host = pick(simulation, toxic)
    if host is not None:
        simulation.cut(host, toxic.length_ms)
    return host is not None


def pause_broker(simulation: "Simulation", toxic: Toxic) -> bool:
    simulation.pause_broker(toxic.length_ms)
    return True


def slow_network(simulation: "Simulation", toxic: Toxic) -> bool:
    world = simulation.world
    world.latency_ms = (5, 80)
    world.after(toxic.length_ms, setattr, world, "latency_ms", (1, 9))
    simulation.disturb(toxic.length_ms)
    return True


def lose_reply(simulation: "Simulation", toxic: Toxic) -> bool:
    """Lose the reply to a worker's next commit."""
    host = pick(simulation, toxic)
    if host is not None:
        host.worker.lose_replies += 1
    return host is not None


def repeat_end(simulation: "Simulation", toxic: Toxic) -> bool:
    """Repeat the ends of a worker's next transactions, late (F20)."""
    host = pick(simulation, toxic)
    if host is not None:
        host.worker.repeat_ends += 3
    return host is not None


def lose_messages(simulation: "Simulation", toxic: Toxic) -> bool:
    """Lose a third of the inbox messages for a while."""
    inbox = simulation.inbox
    inbox.lose = 0.33
    simulation.world.after(toxic.length_ms, setattr, inbox, "lose", simulation.scenario.lose)
    simulation.disturb(toxic.length_ms + 1_000)
    return True


def replay_messages(simulation: "Simulation", toxic: Toxic) -> bool:
    """Replay messages of ended incarnations and former epochs."""
    simulation.inbox.replay(toxic.draw)
    return True


def drain(simulation: "Simulation", toxic: Toxic) -> bool:
    """A member leaves with a drain time (L4)."""
    host = pick(simulation, toxic)
    if host is None or host.worker.leaving or host.worker.paused:
        return False
    simulation.world.trace_event(f"{host.worker.incarnation} drains")
    host.worker.leave(rejoin=False, drain_ms=1_000 + toxic.length_ms)
    simulation.disturb(0)
    return True


def leave(simulation: "Simulation", toxic: Toxic) -> bool:
    host = pick(simulation, toxic)
    if host is None or host.worker.leaving or host.worker.paused:
        return False
    simulation.world.trace_event(f"{host.worker.incarnation} leaves")
    host.worker.leave(rejoin=False, drain_ms=0)
    simulation.disturb(0)
    return True


def bounce(simulation: "Simulation", toxic: Toxic) -> bool:
    """A member restarts in order (S1, S2)."""
    host = pick(simulation, toxic)
    if host is None or host.worker.leaving or host.worker.paused:
        return False
    simulation.world.trace_event(f"{host.worker.incarnation} restarts in order")
    host.worker.leave(rejoin=True, drain_ms=0)
    simulation.restart_when_closed.add(host)
    simulation.disturb(2_000)
    return True


def join(simulation: "Simulation", toxic: Toxic) -> bool:
    """A member joins, sometimes to leave immediately (N11)."""
    host = simulation.add_spare()
    if host is not None:
        simulation.disturb(0)
        if toxic.draw < 0.3:
            simulation.world.after(toxic.length_ms, simulation.kill_for_good, host)
    return host is not None


def same_name(simulation: "Simulation", toxic: Toxic) -> bool:
    """A process with the same group_instance_id starts: the older one is fenced (S3)."""
    host = pick(simulation, toxic)
    if host is not None:
        simulation.add_twin(host)
        simulation.disturb(1_000)
    return host is not None


def misfit(simulation: "Simulation", toxic: Toxic) -> bool:
    """A member with another program, assignor or version is refused, unless the group is empty."""
    if simulation.resting.is_active or not simulation.log.live():
        return False
    changed: dict[str, dict[str, object]] = {
        "program": {"topology_hash": "another"},
        "assignor": {"assignor": "round_robin"},
        "version": {"protocol": (7, 9)},
    }
    shards = simulation.scenario.shards
    if shards > 1:
        changed |= {"shards": {"shards": 8}, "old": {"shards": 1, "protocol": (1, 1)}}
    why = list(changed)[int(toxic.draw * len(changed)) % len(changed)]
    settings = MemberSettings(
        member=f"misfit-{why}-{len(simulation.hosts)}",
        shards=shards,
        protocol=(required_version(shards), PROTOCOL_MAX),
    )
    simulation.add_misfit(replace(settings, **changed[why]))  # type: ignore[arg-type]  # each is a field's
    return True


def slow_restore(simulation: "Simulation", toxic: Toxic) -> bool:
    host = pick(simulation, toxic)
    if host is not None:
        host.worker.slow_until_ms = simulation.world.now + toxic.length_ms
        simulation.disturb(toxic.length_ms)
    return host is not None


def disk_full(simulation: "Simulation", toxic: Toxic) -> bool:
    host = pick(simulation, toxic)
    if host is not None:
        host.worker.no_disk_until_ms = simulation.world.now + toxic.length_ms
        simulation.disturb(toxic.length_ms + 2_000)
    return host is not None


def damage(simulation: "Simulation", toxic: Toxic) -> bool:
    """Lose a copy's files, sometimes just after its READY (H13)."""
    copies: list[tuple[Host, CopyTask]] = [
        (host, copy)
        for host in simulation.hosts
        if host.up and host.worker.up and not host.worker.paused
        for copy in host.worker.copies.values()
    ]
    if copies:
        host, copy = copies[int(toxic.draw * len(copies))]
        simulation.world.trace_event(
            f"{host.worker.incarnation} loses its copy of {copy.names.text}"
        )
        host.worker.damage(copy)
    return bool(copies)


def swap_stores(simulation: "Simulation", toxic: Toxic) -> bool:
    """Swap stores of copies without a report."""
    workers = [host.worker for host in simulation.hosts if host.up and host.worker.up]
    copies = [(worker, copy) for worker in workers for copy in worker.copies.values()]
    for worker, copy in copies:
        worker.swap(copy)
    return bool(copies)


def compact(simulation: "Simulation", toxic: Toxic) -> bool:
    simulation.compact(toxic.draw)
    return True


def long_night(simulation: "Simulation", toxic: Toxic) -> bool:
    """Pass hours; remove tombstones that no open store needs (H27)."""
    simulation.night(TOMBSTONE_RETENTION_MS + 60_000)
    return True


def forged_record(simulation: "Simulation", toxic: Toxic) -> bool:
    """Write records of a former epoch into the group log (fault 34)."""
    log = simulation.log
    if log.leader_epoch < 2 or not log.tasks:
        return False
    task = sorted(log.tasks)[int(toxic.draw * len(log.tasks))]
    forged = structs.replace(
        log.tasks[task],
        leader_epoch=log.leader_epoch - 1,
        phase="RUNNING",
        task_epoch=log.tasks[task].task_epoch + 5,
        owner=incarnation_name("m0", 1),
        member="m0",
        event="GRANT",
    )
    simulation.forge(forged)
    return True


def forget_open_transactions(simulation: "Simulation", toxic: Toxic) -> bool:
    """Expire open transactions, which fences their producers."""
    simulation.world.broker.expire(simulation.world.wall_ms(), 5)
    return True


def grow(simulation: "Simulation", toxic: Toxic) -> bool:
    """Add partitions to a topic (N8)."""
    simulation.grow(1 + int(toxic.draw * 3))
    return True


def lose_topics(simulation: "Simulation", toxic: Toxic) -> bool:
    """Delete the control topics; an operator recovers them (H24)."""
    simulation.safe_hold.lose(max(toxic.length_ms, 2_500))
    return True


def rest(simulation: "Simulation", toxic: Toxic) -> bool:
    """An operator brings the application to rest, and lets it continue later.

    A misfit that asks meanwhile could be the first member of the emptied group.
    """
    if any(host.up and host.settings.member.startswith("misfit") for host in simulation.hosts):
        return False
    simulation.resting.begin(toxic.length_ms)
    return True


FAULTS: dict[str, Fault] = {
    "kill_host": Fault(kill_host, 6),
    "kill_leader": Fault(kill_leader, 2),
    "kill_leader_at_a_bad_time": Fault(kill_leader_at_a_bad_time, 6, waits=True),
    "stop_leader": Fault(stop_leader, 3),
    "stop_worker": Fault(stop_worker, 6),
    "stop_watchdog": Fault(stop_watchdog),
    "stop_host": Fault(stop_host),
    "kill_worker": Fault(kill_worker, 6),
    "kill_watchdog": Fault(kill_watchdog, 3),
    "cut_off": Fault(cut_off, 5),
    "pause_broker": Fault(pause_broker, 2),
    "slow_network": Fault(slow_network, 2),
    "lose_reply": Fault(lose_reply),
    "repeat_end": Fault(repeat_end),
    "lose_messages": Fault(lose_messages),
    "replay_messages": Fault(replay_messages),
    "drain": Fault(drain),
    "leave": Fault(leave, 3),
    "bounce": Fault(bounce),
    "join": Fault(join, 7),
    "same_name": Fault(same_name, 2),
    "misfit": Fault(misfit, 2),
    "slow_restore": Fault(slow_restore),
    "disk_full": Fault(disk_full, 3),
    "damage": Fault(damage),
    "swap_stores": Fault(swap_stores, 0),
    "compact": Fault(compact),
    "long_night": Fault(long_night, 2),
    "forged_record": Fault(forged_record, 2),
    "forget_open_transactions": Fault(forget_open_transactions, 2),
    "grow": Fault(grow, 1),
    "lose_topics": Fault(lose_topics, 0),
    "rest": Fault(rest, 0),
}

#: Not faults: members come and go in order.
GENTLE = ("join", "drain", "leave", "bounce", "compact")
#: Not counted as faults.
ORDERLY = {*GENTLE, "grow"}
#: Always have a target: they replace missed faults.
SURE = ("lose_messages", "slow_network", "pause_broker")


def strike(simulation: "Simulation", toxic: Toxic, until_ms: int) -> None:
    """Strike; without a target, retry soon."""
    world = simulation.world
    world.trace_event(f"-- {toxic.kind}")
    fault = FAULTS[toxic.kind]
    if fault.strike(simulation, toxic):
        simulation.metrics.faults[toxic.kind] += not fault.waits
    elif world.now + STRIKE_AGAIN_MS < until_ms:
        world.after(STRIKE_AGAIN_MS, strike, simulation, toxic, until_ms)


def make_up(simulation: "Simulation", until_ms: int) -> None:
    """Add missing faults, or another leader."""
    for kind in SURE:
        if simulation.metrics.lacks_faults():
            strike(simulation, Toxic(simulation.world.now, kind, 0.5, 200), until_ms)
    if simulation.log.claims < 2:
        strike(simulation, Toxic(simulation.world.now, "kill_leader", 0.5, 200), until_ms)


def bad_time(simulation: "Simulation", records: Sequence[AnyRecord]) -> None:
    """Kill the leader after a record of the drawn kind."""
    toxic = simulation.kill_toxic
    if not simulation.kill_at or toxic is None:
        return
    kinds = {each.event for each in records if isinstance(each, TaskRecord)}
    kinds |= {each.phase for each in records if isinstance(each, MemberRecord)}
    kinds |= {type(each).__name__.removesuffix("Record").upper() for each in records}
    if simulation.kill_at not in kinds:
        return
    simulation.kill_after_records -= 1
    if simulation.kill_after_records <= 0:
        simulation.kill_at = ""
        simulation.world.trace_event(f"the leader is killed after {sorted(kinds)}")
        simulation.world.after(0, _kill_at_a_bad_time, simulation, toxic)


def _kill_at_a_bad_time(simulation: "Simulation", toxic: Toxic) -> None:
    simulation.metrics.faults[toxic.kind] += kill_leader(simulation, toxic)
