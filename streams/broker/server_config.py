"""Settings files of a development broker: Kafka's and log4j's."""

from collections.abc import Mapping
from pathlib import Path

from tidewheel.streams.broker.broker_errors import BrokerSettingError

#: Name of the listener for clients; map it to another protocol to try security.
LISTENER = "BROKER"

_CONTROLLER = "CONTROLLER"
_HOST = "127.0.0.1"
_NODE_ID = 1
#: Session timeout (ms) of a controller without brokers, see `fencing_properties`. The last run's
#: broker sends no heartbeats, so the controller fences it after this time.
FENCING_SESSION_MS = 100

_DEVELOPMENT_DEFAULTS = {
    # One node can't have a second replica.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Kafka's own topics have few partitions: a client waits for their creation at first use.
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    "share.coordinator.state.topic.num.partitions": "1",
    # A new group need not wait for further members.
    "group.initial.rebalance.delay.ms": "0",
    # Both keep this only broker the leader of its partitions: it resigns none at a stop, and its
    # heartbeats may be 18 s late. Without a leader, a commit in progress loses its markers (see
    # `fencing_properties`).
    "controlled.shutdown.enable": "false",
    "broker.session.timeout.ms": "18000",
    # A misspelt topic is an error, as in most production clusters.
    "auto.create.topics.enable": "false",
    # Kafka's default of seven days would soon delete old test data: retention uses the records' own
    # time.
    "log.retention.ms": "-1",
    # Small for a laptop: threads, and the cleaner's memory (default: 128 MiB).
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    "log.segment.bytes": str(128 << 20),
}

#: For a broker that is never restarted, as in a test run: on a slow machine its heartbeats may be
#: 60 s late.
PATIENT = {"broker.session.timeout.ms": 60_000}


def server_properties(
    *,
    port: int,
    controller_port: int,
    log_dir: Path,
    overrides: Mapping[str, str | int | bool],
) -> dict[str, str]:
    """Return Kafka's settings for one node that is broker and controller; `overrides` win."""
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(_NODE_ID),
        "listeners": f"{LISTENER}://{_HOST}:{port},{_CONTROLLER}://{_HOST}:{controller_port}",
        "listener.security.protocol.map": f"{LISTENER}:PLAINTEXT,{_CONTROLLER}:PLAINTEXT",
        "inter.broker.listener.name": LISTENER,
        "controller.listener.names": _CONTROLLER,
        "controller.quorum.bootstrap.servers": f"{_HOST}:{controller_port}",
        "log.dirs": str(log_dir),
        **_DEVELOPMENT_DEFAULTS,
    }
    return properties | {name: _value(value) for name, value in overrides.items()}


def fencing_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return settings of a controller alone, which fences the last broker run in this folder.

    Kafka 4 loses the end of a transaction when a lone broker is simply started again. The broker
    resumes the last run's open commits, but can't send markers to itself because it does not listen
    yet. When the last run's session expires, the partition has no leader. Kafka treats it as
    deleted (`TransactionMarkerChannelManager`) and the transaction as complete: its records stay
    undecided, or a later abort drops them. If the last run is fenced first, the broker leads no
    partition until it listens.
    """
    controllers = _controllers(properties)
    listeners = [listener.strip() for listener in properties["listeners"].split(",")]
    own_listeners = ",".join(name for name in listeners if name.partition("://")[0] in controllers)
    # A controller alone must not have these settings.
    not_its_own = {"advertised.listeners", "inter.broker.listener.name"}
    copied = {name: value for name, value in properties.items() if name not in not_its_own}
    return copied | {
        "process.roles": "controller",
        "listeners": own_listeners,
        "broker.session.timeout.ms": str(FENCING_SESSION_MS),
    }


def check_listeners(properties: Mapping[str, str]) -> None:
    """Raise `BrokerSettingError` if the listeners don't fit a broker that is also controller."""
    names = [
        entry.strip().partition("://")[0] for entry in properties["listeners"].split(",") if entry
    ]
    controllers = _controllers(properties)
    inner = properties["inter.broker.listener.name"]
    missing = [name for name in (inner, *controllers) if name not in names]
    if missing:
        raise BrokerSettingError(
            f"listeners={properties['listeners']} lacks {' and '.join(missing)}: this one node is broker and controller. "
            "To choose the port for clients, give port (--port) instead; for other listeners name these two as well, "
            f"such as listeners={LISTENER}://{_HOST}:9092,{_CONTROLLER}://{_HOST}:9093"
        )
    protocols = {
        entry.strip().partition(":")[0]
        for entry in properties["listener.security.protocol.map"].split(",")
    }
    unmapped = sorted(set(names) - protocols)
    if unmapped:
        raise BrokerSettingError(
            f"listener {', '.join(unmapped)} has no protocol: add it to listener.security.protocol.map, which is "
            f"{properties['listener.security.protocol.map']}"
        )


def client_listener(properties: Mapping[str, str]) -> tuple[str, bool]:
    """Return the address for clients, and True if it has neither TLS nor authentication."""
    listeners = properties.get("advertised.listeners") or properties["listeners"]
    controllers = _controllers(properties)
    protocols = dict(
        entry.strip().split(":", 1)
        for entry in properties["listener.security.protocol.map"].split(",")
        if ":" in entry
    )
    for entry in listeners.split(","):
        name, _, address = entry.strip().partition("://")
        if name not in controllers:
            return address, protocols.get(name, name) == "PLAINTEXT"
    return "", False


def format_properties(properties: Mapping[str, str]) -> str:
    return "".join(f"{_escape(k, key=True)}={_escape(v)}\n" for k, v in properties.items())


def log4j_config(log_file: Path) -> str:
    """Return log settings: one file from level INFO, rolled over at 20 MB."""
    return format_properties(
        {
            "rootLogger.level": "INFO",
            "rootLogger.appenderRef.file.ref": "file",
            "appender.file.type": "RollingFile",
            "appender.file.name": "file",
            "appender.file.fileName": str(log_file),
            "appender.file.filePattern": f"{log_file}.%i",
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.pattern": "%d{ISO8601} %-5p %c{1} [%t] %m%n",
            "appender.file.policies.type": "Policies",
            "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
            "appender.file.policies.size.size": "20MB",
            "appender.file.strategy.type": "DefaultRolloverStrategy",
            "appender.file.strategy.max": "3",
        }
    )


def _controllers(properties: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in properties["controller.listener.names"].split(",")]


def _value(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(text: str, *, key: bool = False) -> str:
    out: list[str] = []
    for position, character in enumerate(text):
        code = ord(character)
        if character == "\\" or (key and character in "=:# !") or (position == 0 and code == 0x20):  # noqa: PLR2004 - a leading blank
            out.append("\\" + character)
        elif 0x20 <= code < 0x7F:  # noqa: PLR2004 - printable ASCII
            out.append(character)
        else:
            # Beyond U+FFFF Java needs both halves of a surrogate pair.
            units = character.encode("utf-16-be").hex()
            out.extend(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    return "".join(out)
