"""Kafka's configuration files, as Java reads them."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.streams.broker.server_config import (
    client_listener,
    fencing_properties,
    format_properties,
    log4j_config,
    server_properties,
)

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def _properties(**overrides: str | int | bool) -> dict[str, str]:
    return server_properties(
        port=9092,
        controller_port=9093,
        log_dir=Path("/data/kafka"),
        overrides={name.replace("__", "."): value for name, value in overrides.items()},
    )


def _read_as_java_does(text: str) -> dict[str, str]:
    """Parse Java's properties format by its specification."""
    read: dict[str, str] = {}
    for line in text.splitlines():
        at = re.search(r"(?<!\\)(?:\\\\)*=", line)
        assert at is not None
        read[_unescape(line[: at.end() - 1])] = _unescape(line[at.end() :].lstrip(" \t\f"))
    return read


def _unescape(text: str) -> str:
    units: list[int] = []
    position = 0
    while position < len(text):
        if text[position] != "\\":
            units.append(ord(text[position]))
            position += 1
        elif text[position + 1] == "u":
            units.append(int(text[position + 2 : position + 6], 16))
            position += 6
        else:
            units.append(ord(text[position + 1]))
            position += 2
    return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be")


@given(st.dictionaries(_TEXT.filter(bool), _TEXT))
def test_java_reads_back_the_written_properties(properties: dict[str, str]) -> None:
    assert _read_as_java_does(format_properties(properties)) == properties


def test_the_broker_is_reachable_from_this_machine_only() -> None:
    listeners = _properties()["listeners"]
    assert listeners == "BROKER://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    assert "advertised.listeners" not in _properties()


def test_one_node_has_a_replication_factor_of_one() -> None:
    properties = _properties()
    one = [name for name in properties if name.endswith((".replication.factor", ".min.isr"))]
    assert len(one) == 6
    assert {properties[name] for name in one} == {"1"}
    assert properties["min.insync.replicas"] == "1"


def test_properties_of_the_user_override_the_defaults() -> None:
    properties = _properties(
        auto__create__topics__enable=True, offsets__topic__num__partitions=3, own__thing="x"
    )
    assert properties["auto.create.topics.enable"] == "true"
    assert properties["offsets.topic.num.partitions"] == "3"
    assert properties["own.thing"] == "x"


def test_clients_connect_to_the_listener_of_the_broker() -> None:
    assert client_listener(_properties()) == ("127.0.0.1:9092", True)
    secured = _properties(
        listener__security__protocol__map="CONTROLLER:PLAINTEXT, BROKER:SASL_PLAINTEXT"
    )
    assert client_listener(secured) == ("127.0.0.1:9092", False)
    own = _properties(listeners="CONTROLLER://:1,PLAINTEXT://127.0.0.1:5")
    assert client_listener(own) == ("127.0.0.1:5", True)
    advertised = _properties(advertised__listeners="BROKER://localhost:7")
    assert client_listener(advertised) == ("localhost:7", True)


def test_kafka_logs_into_its_folder_and_not_to_the_terminal() -> None:
    config = _read_as_java_does(log4j_config(Path("/data/logs/broker.log")))
    assert config["appender.file.fileName"] == "/data/logs/broker.log"
    assert [name for name in config if name.endswith(".type") and name.count(".") == 2] == [
        "appender.file.type"
    ]


def test_the_controller_that_fences_has_only_its_own_listener() -> None:
    properties = _properties(advertised__listeners="BROKER://here:9092", num__io__threads=2)
    fencing = fencing_properties(properties)
    assert fencing["process.roles"] == "controller"
    assert fencing["listeners"] == "CONTROLLER://127.0.0.1:9093"
    assert int(fencing["broker.session.timeout.ms"]) < 1_000
    changed = {name for name in properties if fencing.get(name) != properties[name]}
    assert changed == {
        "process.roles",
        "listeners",
        "advertised.listeners",
        "inter.broker.listener.name",
        "broker.session.timeout.ms",
    }
