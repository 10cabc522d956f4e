"""Instances of the measured systems: start, clean stop, kill and silence."""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from benchmarks.environment import java
from benchmarks.environment.peer_process import RunFailedError, environment
from benchmarks.environment.systems import JAVA_STOPPED, PEERS
from tidewheel.tasks.key_ranges.key_ranges import shard_of

#: Parts of the work that move: partitions, or shards of one partition.
PLACES = 4
STOP_S = 60.0
ADMIN_S = 30.0
ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffSystem:
    """One measured system.

    Attributes:
        arguments: Its own arguments, which add to or replace the common ones.
        balances_s: Time limit of a move.
        cycles_max: Limit of cycles, for peers that take minutes per cycle.
        shards: Of the only partition of its topics; 1: `PLACES` partitions without shards.
    """

    name: str
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    balances_s: float = 60.0
    cycles_max: int = 1_000
    shards: int = 1

    @property
    def partitions(self) -> int:
        return PLACES // self.shards

    def place_of(self, partition: int, key: bytes) -> int:
        """Return the place that a result comes from: its partition, or its shard of the only one."""
        return partition if self.shards == 1 else shard_of(key, self.shards).number

    def command(self) -> list[str]:
        if self.name.startswith("tidewheel"):
            return [sys.executable, str(PEERS / "tidewheel" / "handoff.py")]
        return java.compiled_command(PEERS / "kafka_streams" / "Handoff.java")

    def given(self, arguments: Mapping[str, str]) -> dict[str, str]:
        """Return the common arguments an instance gets, as its rows show them."""
        return {**arguments, **self.arguments}

    def group_config(self, arguments: Mapping[str, str]) -> dict[str, str]:
        """Return the broker's settings of its group; streams members cannot set them."""
        given = self.given(arguments)
        if given.get("protocol") != "streams":
            return {}
        return {
            theirs: given[ours] for ours, theirs in _SAID_BY_THE_BROKER.items() if ours in given
        }


#: Our argument and Kafka's setting of a group.
_SAID_BY_THE_BROKER: Mapping[str, str] = {
    "session_timeout_ms": "streams.session.timeout.ms",
    "heartbeat_interval_ms": "streams.heartbeat.interval.ms",
    "num_standby_replicas": "streams.num.standby.replicas",
}

#: Kafka Streams at its lowest legal values in every job. The classic protocol's sessions take at
#: least 6 s, by the broker's default. The streams protocol gets our session
#: (`broker.SHORT_SESSIONS`).
HANDOFF_SYSTEMS: Mapping[str, HandoffSystem] = {
    system.name: system
    for system in (
        HandoffSystem(name="tidewheel", arguments={"settling_ms": "0"}),
        HandoffSystem(
            name="tidewheel-shards",
            arguments={"settling_ms": "0", "partition_shards": str(PLACES)},
            shards=PLACES,
        ),
        HandoffSystem(
            name="kafka-streams-classic",
            arguments={
                "protocol": "classic",
                "session_timeout_ms": "6000",
                "heartbeat_interval_ms": "1500",
            },
            balances_s=240.0,
            cycles_max=2,
        ),
        HandoffSystem(
            name="kafka-streams",
            arguments={
                "protocol": "streams",
                "session_timeout_ms": "1500",
                "heartbeat_interval_ms": "250",
            },
            balances_s=240.0,
            cycles_max=5,
        ),
    )
}


def configure_group(admin: AdminClient, group: str, config: Mapping[str, str]) -> None:
    """Set the configuration of a future group; a broker that refuses it ends the run."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    try:
        admin.incremental_alter_configs([resource])[resource].result(ADMIN_S)
    except KafkaException as error:
        raise RunFailedError(
            f"the broker does not take {dict(config)} for group {group}: {error}"
        ) from error


class Instance:
    def __init__(
        self, system: HandoffSystem, name: str, arguments: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self._log_path = folder / f"{name}.log"
        given = {
            **system.given(arguments),
            "instance": name,
            "state_dir": str(folder / f"state-{name.split('.', maxsplit=1)[0]}"),
        }
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*system.command(), *(f"{key}={value}" for key, value in given.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment(),
                start_new_session=True,
            )

    def _helpers(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children(recursive=True)

    def check(self) -> None:
        code = self._process.poll()
        if code is not None:
            raise RunFailedError(f"instance {self.name} ended with code {code}\n{self._tail()}")

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait_ended(self) -> None:
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.destroy()
            raise RunFailedError(
                f"instance {self.name} did not stop within {STOP_S:.0f} s\n{self._tail()}"
            ) from None
        if code not in (0, JAVA_STOPPED):
            raise RunFailedError(f"instance {self.name} stopped with code {code}\n{self._tail()}")

    def kill(self) -> float:
        at_s = time.monotonic()
        self._process.kill()
        self._process.wait()
        return at_s

    def silence(self) -> float:
        """Stop the worker and all helpers together, like a lost host; return the time."""
        everything = [psutil.Process(self._process.pid), *self._helpers()]
        at_s = time.monotonic()
        for each in everything:
            each.suspend()
        return at_s

    def destroy(self) -> None:
        try:
            left = [*self._helpers(), psutil.Process(self._process.pid)]
        except psutil.NoSuchProcess:
            return
        for each in left:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait()

    def _tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-3_000:]
