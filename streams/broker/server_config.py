"""The files a development broker is started with: Kafka's settings and log4j's."""

from collections.abc import Mapping
from pathlib import Path

from tidewheel.streams.broker.broker_errors import BrokerSettingError

LISTENER = "BROKER"
"""The name of the listener for clients; map it to another protocol to try out security."""

_CONTROLLER = "CONTROLLER"
_HOST = "127.0.0.1"
_NODE_ID = 1
FENCING_SESSION_MS = 100
"""How long a controller that is started to fence the last run believes that it may still be there."""

_DEVELOPMENT_DEFAULTS = {
    # One node: a second copy could never be made.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Fewer partitions of Kafka's own topics: they are created at first use, which someone waits for.
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    "share.coordinator.state.topic.num.partitions": "1",
    # Do not wait for more members of a group: they are not coming.
    "group.initial.rebalance.delay.ms": "0",
    # There is nobody to hand leadership to, and a transaction that is being committed while there is no leader loses its
    # end (see `fencing_properties`). So it is not given up at a stop, nor taken away soon when the machine makes the
    # broker wait.
    "controlled.shutdown.enable": "false",
    "broker.session.timeout.ms": "18000",
    # A misspelt topic shall be an error, as it is in most companies' clusters.
    "auto.create.topics.enable": "false",
    # Keep everything: retention goes by the records' own time, and data written for a try is often old. With
    # Kafka's seven days it would vanish in the first check, 30 s after the start.
    "log.retention.ms": "-1",
    # Small for a laptop: threads, and the cleaner's memory (128 MiB by default).
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    "log.segment.bytes": str(128 << 20),
}

PATIENT = {"broker.session.timeout.ms": 60_000}
"""For a broker that is not started again, as that of a test run: however long the machine makes it wait, it is not taken for dead.

A lone broker that is taken for dead leads nothing for a while, and what comes of transactions then is below.
"""


def server_properties(
    *,
    port: int,
    controller_port: int,
    log_dir: Path,
    overrides: Mapping[str, str | int | bool],
) -> dict[str, str]:
    """Kafka's settings for one node that is broker and controller; `overrides` win over all."""
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
    """Settings of the controller alone, which takes the broker of the last run for dead at once.

    Kafka 4 loses the end of a transaction if a lone broker is started as it is (seen with 4.3.1): what the last run left
    in the midst of a commit is taken up before the broker is registered, can't be sent to itself because it does not
    listen yet, and is dropped once the last run's session is over: a partition without a leader counts as deleted there
    (`TransactionMarkerChannelManager.addTxnMarkersToBrokerQueue`, `KRaftMetadataCache.getPartitionLeaderEndpoint`), and
    the transaction as complete. Its records stay undecided, or an abort that comes later takes them. With the last run fenced before the broker
    starts, it leads nothing until it listens.
    """
    controllers = _controllers(properties)
    listeners = [each.strip() for each in properties["listeners"].split(",")]
    own = ",".join(each for each in listeners if each.partition("://")[0] in controllers)
    # Both name listeners that a controller has not.
    not_its_own = {"advertised.listeners", "inter.broker.listener.name"}
    kept = {name: value for name, value in properties.items() if name not in not_its_own}
    return kept | {
        "process.roles": "controller",
        "listeners": own,
        "broker.session.timeout.ms": str(FENCING_SESSION_MS),
    }


def check_listeners(properties: Mapping[str, str]) -> None:
    """Raise `BrokerSettingError` if the listeners can't be those of one node that is broker and controller.

    Kafka would say it too, in a trace of Java, and not what to write instead.
    """
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
    """The address clients connect to, and whether it is a plain one (no TLS, no authentication)."""
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
    """The text of a Java properties file."""
    return "".join(f"{_escape(k, key=True)}={_escape(v)}\n" for k, v in properties.items())


def log4j_config(log_file: Path) -> str:
    """Everything from INFO up into one file, which is rolled over before it gets large."""
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
    """The names of the controller's listeners."""
    return [name.strip() for name in properties["controller.listener.names"].split(",")]


def _value(value: str | int | bool) -> str:
    """As Kafka writes it: Python's True is Java's true."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(text: str, *, key: bool = False) -> str:
    out: list[str] = []
    for position, character in enumerate(text):
        code = ord(character)
        if character == "\\" or (key and character in "=:# !") or (position == 0 and code == 0x20):  # noqa: PLR2004  # a leading blank
            out.append("\\" + character)
        elif 0x20 <= code < 0x7F:  # noqa: PLR2004  # printable ASCII
            out.append(character)
        else:
            # Beyond the basic plane Java wants the two halves of UTF-16.
            units = character.encode("utf-16-be").hex()
            out.extend(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    return "".join(out)
