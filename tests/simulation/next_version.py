"""Members of the next protocol version, and rolling upgrades to it and back (N14)."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

import msgspec

from tests.simulation.host import Host
from tests.simulation.laws.invariants import LogInvariants
from tests.simulation.model.world import Process, World
from tidewheel.rebalance.protocol.messages import PROTOCOL_MAX

#: The next version of the group protocol.
NEXT = PROTOCOL_MAX + 1

UNKNOWN_KIND = b'{"kind":"TELEPATHY","app":"shop","member":"m0","incarnation":"m0.1","v":3,"thought":{"deep":[1]}}'

UNKNOWN_RECORD = b'{"kind":"FORECAST","leader_epoch":1,"v":3,"weather":{"deep":[1]}}'


def newer_form(data: bytes) -> bytes:
    """Return a message or record with unknown fields."""
    fields = msgspec.json.decode(data)
    fields["v"] = NEXT
    fields["mood"] = {"colour": "blue", "since": [1, 2, 3]}
    return msgspec.json.encode(fields)


class Rolled(Protocol):
    world: World
    log: LogInvariants

    def restart_in_order(self, host: Host) -> None: ...

    def disturb(self, length_ms: int) -> None: ...


class Rolling:
    """Members of the next version, and rolling restarts."""

    def __init__(self, lifetime: Rolled, newer: Iterable[int]) -> None:
        self.lifetime = lifetime
        self.newer = set(newer)  # Host numbers on the next version.
        self.rolled: set[Host] = set()  # Hosts already restarted.

    def is_newer(self, process: Process | None) -> bool:
        return isinstance(process, Host) and process.number in self.newer

    def begin(self, hosts: Iterable[Host], *, newer: bool) -> None:
        self.rolled.clear()
        each_ms = 1_500
        for host in hosts:
            self.lifetime.world.after(each_ms, self._restart, host, newer)
            each_ms += 700
        self.lifetime.disturb(each_ms + 1_000)

    def _restart(self, host: Host, newer: bool) -> None:
        (self.newer.add if newer else self.newer.discard)(host.number)
        self.rolled.add(host)
        host.settings = replace(
            host.settings, protocol=(host.settings.protocol[0], NEXT if newer else PROTOCOL_MAX)
        )
        if host.up and host.worker.up and not host.worker.leaving:
            self.lifetime.world.trace_event(
                f"{host.name} is rolled to version {host.settings.protocol[1]}"
            )
            self.lifetime.restart_in_order(host)

    def check_version(self) -> None:
        """N14: at rest, the group version suits all members."""
        about = self.lifetime.log.about
        version = 0 if about is None else about.group_version
        wanted = NEXT if self.newer else PROTOCOL_MAX
        if version != wanted:
            self.lifetime.world.fail(f"N14: all speak version {wanted}, the group {version}")
