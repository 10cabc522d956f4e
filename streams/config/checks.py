"""Checks across options: contradictions are errors, doubtful combinations are cautions."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from tidewheel.streams.config.client_properties import (
    CLIENT_KINDS,
    ClientKind,
    unchecked_certificates,
)
from tidewheel.streams.config.explain import labelled

#: Minimum heartbeats per session timeout: with fewer, one lost heartbeat counts as a death.
_HEARTBEATS_PER_SESSION: Final = 3


class _Options(Protocol):
    @property
    def heartbeat_interval_ms(self) -> int: ...
    @property
    def session_timeout_ms(self) -> int: ...
    @property
    def parallelising_factor(self) -> int: ...
    @property
    def num_stream_threads(self) -> int | str: ...
    @property
    def dead_letter_queue_topic(self) -> str | None: ...
    @property
    def late_records_to_dead_letter_queue(self) -> bool: ...
    def client_properties(self, kind: ClientKind) -> dict[str, Any]: ...


def contradictions(config: _Options, origins: Mapping[str, str]) -> list[str]:
    problems: list[str] = []
    least = _HEARTBEATS_PER_SESSION * config.heartbeat_interval_ms
    if config.session_timeout_ms < least:
        session = labelled("session_timeout_ms", config.session_timeout_ms, origins)
        heartbeat = labelled("heartbeat_interval_ms", config.heartbeat_interval_ms, origins)
        problems.append(
            f"{session}: must be at least {_HEARTBEATS_PER_SESSION} times {heartbeat}; set session_timeout_ms to "
            f"{least} or more, or lower heartbeat_interval_ms"
        )
    if config.late_records_to_dead_letter_queue and config.dead_letter_queue_topic is None:
        late = labelled("late_records_to_dead_letter_queue", True, origins)
        problems.append(
            f"{late}: there is no dead-letter topic to write them to; set dead_letter_queue_topic, or leave this False"
        )
    return problems


def cautions(config: _Options) -> list[str]:
    """Return doubtful combinations of settings; each start logs them, `config show` too."""
    warnings: list[str] = []
    if config.parallelising_factor > 1 and config.num_stream_threads == 1:
        warnings.append(
            f"parallelising_factor={config.parallelising_factor} has no effect with num_stream_threads=1; leave that at "
            "'auto', or give more threads"
        )
    clients = {kind: config.client_properties(kind) for kind in CLIENT_KINDS}
    warnings += [
        f"{name}[{key!r}] is off: anyone on the network path can pose as the broker and read the password; "
        "give the broker's CA with ssl.ca.location instead"
        for name, properties in clients.items()
        for key in unchecked_certificates(properties)
    ]
    # All clients use the same listeners, and a listener has one protocol.
    protocols = {
        name: str(properties.get("security.protocol", "plaintext")).lower()
        for name, properties in clients.items()
    }
    if len(set(protocols.values())) > 1:
        by_client = ", ".join(f"{name}: {protocol}" for name, protocol in protocols.items())
        warnings.append(
            f"security.protocol differs between clients ({by_client}), but all of them connect to bootstrap_servers; set "
            "it, and its credentials, in kafka"
        )
    return warnings
