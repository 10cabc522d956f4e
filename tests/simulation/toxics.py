"""What goes wrong: each kind of fault is a function of the lifetime; when and whom it hits is drawn from the seed.

The names are those of the fault matrix: processes die, stop and hang, networks are cut, brokers pause, replies are lost,
a transaction's end comes twice, messages are lost, repeated and replayed, disks fill and are damaged, hours pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rebalance.records import TaskRecord
from tests.simulation.host import Host, MemberSettings
from tests.simulation.model_tasks import CopyTask
from tests.simulation.workload import TOMBSTONE_RETENTION_MS
from tests.simulation.world import Process

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation


@dataclass(frozen=True, slots=True, order=True)
class Toxic:
    """One fault: when, what, whom (`draw`, 0 to 1), for how long."""

    at_ms: int
    kind: str
    draw: float
    length_ms: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault: what it does, and how often it is drawn."""

    strike: Callable[["Simulation", Toxic], None]
    weight: int = 4


def pick(simulation: "Simulation", toxic: Toxic) -> Host | None:
    """Return the host a fault hits: one that runs, if there are at least two."""
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
    simulation.world.note(f"{host.name} is killed")
    host.kill()
    _come_back(simulation, host, toxic)


def _come_back(simulation: "Simulation", host: Host, toxic: Toxic) -> None:
    if toxic.draw * 1000 % 1 < 0.85:
        simulation.start_later(host, 200 + toxic.length_ms)
    simulation.disturb(toxic.length_ms)


def kill_host(simulation: "Simulation", toxic: Toxic) -> None:
    """A machine is lost, or a program and its watchdog are killed together."""
    host = pick(simulation, toxic)
    if host is not None:
        _kill(simulation, host, toxic)


def kill_leader(simulation: "Simulation", toxic: Toxic) -> None:
    """The leader is killed."""
    host = _leader(simulation)
    if host is not None and pick(simulation, toxic) is not None:
        _kill(simulation, host, toxic)


def kill_leader_at_a_bad_time(simulation: "Simulation", toxic: Toxic) -> None:
    """The leader is killed right after one of its next transactions, before it can do what it has just written."""
    simulation.kill_after_records = 1 + int(toxic.draw * 6)
    simulation.kill_toxic = toxic
    kind = ("FENCING", "FENCED", "TARGET", "STEP", "REVOKE", "RELEASED", "GRANT")
    simulation.kill_at = kind[int(toxic.draw * 997) % len(kind)]
    simulation.disturb(toxic.length_ms)


def stop_leader(simulation: "Simulation", toxic: Toxic) -> None:
    """The leader's watchdog is stopped by a signal and goes on later."""
    host = _leader(simulation)
    if host is not None:
        _pause(simulation, [host], max(toxic.length_ms, 2_000))


def _pause(simulation: "Simulation", processes: Sequence[Process], length_ms: int) -> None:
    simulation.disturb(length_ms)
    for process in processes:
        simulation.pause(process, length_ms)


def stop_worker(simulation: "Simulation", toxic: Toxic) -> None:
    """A worker is stopped, for a while or for longer than it may hang; then it goes on where it was."""
    host = pick(simulation, toxic)
    if host is not None:
        _pause(simulation, [host.worker], int(toxic.length_ms * 1.5))


def stop_watchdog(simulation: "Simulation", toxic: Toxic) -> None:
    """A watchdog is stopped: its worker goes on until its lease ends."""
    host = pick(simulation, toxic)
    if host is not None:
        _pause(simulation, [host], toxic.length_ms)


def stop_host(simulation: "Simulation", toxic: Toxic) -> None:
    """Watchdog and worker are stopped together and come back as if no time had passed, the worker sooner."""
    host = pick(simulation, toxic)
    if host is not None:
        _pause(simulation, [host.worker], toxic.length_ms)
        _pause(simulation, [host], toxic.length_ms + int(toxic.draw * 10_000) % 1_200)


def kill_worker(simulation: "Simulation", toxic: Toxic) -> None:
    """A worker is killed; its watchdog says so at once."""
    host = pick(simulation, toxic)
    if host is not None:
        simulation.world.note(f"{host.worker.name} is killed")
        host.kill_worker()
        _come_back(simulation, host, toxic)


def kill_watchdog(simulation: "Simulation", toxic: Toxic) -> None:
    """A watchdog is killed; its worker starts another."""
    host = pick(simulation, toxic)
    if host is not None:
        simulation.world.note(f"the watchdog of {host.name} is killed")
        host.restart_watchdog()
        simulation.disturb(1_000)


def cut_off(simulation: "Simulation", toxic: Toxic) -> None:
    """A host and the broker can't talk for a while."""
    host = pick(simulation, toxic)
    if host is not None:
        simulation.cut(host, toxic.length_ms)


def pause_broker(simulation: "Simulation", toxic: Toxic) -> None:
    """Nobody can talk to the broker for a while."""
    simulation.pause_broker(toxic.length_ms)


def slow_network(simulation: "Simulation", toxic: Toxic) -> None:
    """Everything takes up to 80 ms for a while."""
    world = simulation.world
    world.latency_ms = (5, 80)
    world.after(toxic.length_ms, setattr, world, "latency_ms", (1, 9))
    simulation.disturb(toxic.length_ms)


def lose_reply(simulation: "Simulation", toxic: Toxic) -> None:
    """Nobody hears what became of a worker's next commit."""
    host = pick(simulation, toxic)
    if host is not None:
        host.worker.lose_replies += 1


def repeat_end(simulation: "Simulation", toxic: Toxic) -> None:
    """The ends of a worker's next transactions arrive again, late (F20)."""
    host = pick(simulation, toxic)
    if host is not None:
        host.worker.repeat_ends += 3


def lose_messages(simulation: "Simulation", toxic: Toxic) -> None:
    """For a while a third of what is said in the inbox is lost."""
    simulation.lose = 0.33
    simulation.world.after(toxic.length_ms, setattr, simulation, "lose", simulation.scenario.lose)
    simulation.disturb(toxic.length_ms + 1_000)


def replay_messages(simulation: "Simulation", toxic: Toxic) -> None:
    """What ended incarnations once said is said again, and so is what was said of former epochs."""
    simulation.replay(toxic.draw)


def drain(simulation: "Simulation", toxic: Toxic) -> None:
    """A member leaves in order and takes its time (L4)."""
    host = pick(simulation, toxic)
    if host is not None and not host.worker.leaving and not host.worker.paused:
        simulation.world.note(f"{host.worker.incarnation} drains")
        host.worker.leave(rejoin=False, drain_ms=1_000 + toxic.length_ms)
        simulation.disturb(0)


def leave(simulation: "Simulation", toxic: Toxic) -> None:
    """A member leaves at once, in order."""
    host = pick(simulation, toxic)
    if host is not None and not host.worker.leaving and not host.worker.paused:
        simulation.world.note(f"{host.worker.incarnation} leaves")
        host.worker.leave(rejoin=False, drain_ms=0)
        simulation.disturb(0)


def bounce(simulation: "Simulation", toxic: Toxic) -> None:
    """A member restarts in order (S1, S2)."""
    host = pick(simulation, toxic)
    if host is not None and not host.worker.leaving and not host.worker.paused:
        simulation.world.note(f"{host.worker.incarnation} restarts in order")
        host.worker.leave(rejoin=True, drain_ms=0)
        simulation.restart_when_closed.add(host)
        simulation.disturb(2_000)


def join(simulation: "Simulation", toxic: Toxic) -> None:
    """Another member joins, at times one that leaves again at once (N11)."""
    host = simulation.add_spare()
    if host is not None:
        simulation.disturb(0)
        if toxic.draw < 0.3:
            simulation.world.after(toxic.length_ms, simulation.kill_for_good, host)


def same_name(simulation: "Simulation", toxic: Toxic) -> None:
    """Another process with the same group_instance_id starts: the older one is fenced (S3)."""
    host = pick(simulation, toxic)
    if host is not None:
        simulation.add_twin(host)
        simulation.disturb(1_000)


def misfit(simulation: "Simulation", toxic: Toxic) -> None:
    """A member with another program, assignor or version tries to join, and is refused."""
    changed: dict[str, dict[str, object]] = {
        "program": {"topology_hash": "another"},
        "assignor": {"assignor": "round_robin"},
        "version": {"protocol": (7, 9)},
    }
    why = list(changed)[int(toxic.draw * 3) % 3]
    settings = MemberSettings(member=f"misfit-{why}-{len(simulation.hosts)}")
    simulation.add_misfit(replace(settings, **changed[why]))  # type: ignore[arg-type]  # each is a field's


def slow_restore(simulation: "Simulation", toxic: Toxic) -> None:
    """A host restores very slowly for a while."""
    host = pick(simulation, toxic)
    if host is not None:
        host.worker.slow_until_ms = simulation.world.now + toxic.length_ms
        simulation.disturb(toxic.length_ms)


def disk_full(simulation: "Simulation", toxic: Toxic) -> None:
    """A host can't open another store for a while."""
    host = pick(simulation, toxic)
    if host is not None:
        host.worker.no_disk_until_ms = simulation.world.now + toxic.length_ms
        simulation.disturb(toxic.length_ms + 2_000)


def damage(simulation: "Simulation", toxic: Toxic) -> None:
    """A copy's files are lost, at times when it has just said that it is ready (H13)."""
    copies: list[tuple[Host, CopyTask]] = [
        (host, copy)
        for host in simulation.hosts
        if host.up and host.worker.up and not host.worker.paused
        for copy in host.worker.copies.values()
    ]
    if copies:
        host, copy = copies[int(toxic.draw * len(copies))]
        simulation.world.note(f"{host.worker.incarnation} loses its copy of {copy.names.text}")
        host.worker.damage(copy)


def compact(simulation: "Simulation", toxic: Toxic) -> None:
    """The cleaner runs over the group log and the changelogs."""
    simulation.compact(toxic.draw)


def long_night(simulation: "Simulation", toxic: Toxic) -> None:
    """Hours pass; the cleaner removes tombstones that no open store still has to read (H27)."""
    simulation.night(TOMBSTONE_RETENTION_MS + 60_000)


def forged_record(simulation: "Simulation", toxic: Toxic) -> None:
    """Somebody writes records of a former epoch into the group log (fault 34)."""
    log = simulation.log
    if log.leader_epoch < 2 or not log.tasks:
        return
    task = sorted(log.tasks)[int(toxic.draw * len(log.tasks))]
    forged = TaskRecord(
        leader_epoch=log.leader_epoch - 1,
        task=task,
        phase="RUNNING",
        task_epoch=log.tasks[task].task_epoch + 5,
        owner="m0.1",
        member="m0",
        event="GRANT",
    )
    simulation.forge(forged)


def forget_open_transactions(simulation: "Simulation", toxic: Toxic) -> None:
    """The broker ends transactions that are open for more than a moment, which fences their producers."""
    simulation.world.broker.expire(simulation.world.wall_ms(), 5)


def grow(simulation: "Simulation", toxic: Toxic) -> None:
    """A topic gets more partitions (N8)."""
    simulation.grow(1 + int(toxic.draw * 3))


def lose_topics(simulation: "Simulation", toxic: Toxic) -> None:
    """The control topics are deleted, and set up again by an operator (H24)."""
    simulation.safe_hold.lose(max(toxic.length_ms, 2_500))


FAULTS: dict[str, Fault] = {
    "kill_host": Fault(kill_host, 6),
    "kill_leader": Fault(kill_leader, 2),
    "kill_leader_at_a_bad_time": Fault(kill_leader_at_a_bad_time, 6),
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
    "compact": Fault(compact),
    "long_night": Fault(long_night, 2),
    "forged_record": Fault(forged_record, 2),
    "forget_open_transactions": Fault(forget_open_transactions, 2),
    "grow": Fault(grow, 1),
    "lose_topics": Fault(lose_topics, 0),
}

#: What is no fault: members come and go in order.
GENTLE = ("join", "drain", "leave", "bounce", "compact")
