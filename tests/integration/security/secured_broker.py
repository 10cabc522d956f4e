"""A broker with TLS, SCRAM and access control lists; its plain listener is for the test alone."""

import re
import secrets
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tidewheel.streams.broker import KafkaBroker
from tidewheel.streams.broker.java import find_java

_ANONYMOUS: Final = "User:ANONYMOUS"
_KINDS: Final = {
    "Topic": ResourceType.TOPIC,
    "Group": ResourceType.GROUP,
    "TransactionalId": ResourceType.TRANSACTIONAL_ID,
    "Cluster": ResourceType.BROKER,
}
_LOG4J: Final = """
status = error
appender.decisions.type = File
appender.decisions.name = decisions
appender.decisions.fileName = {decisions}
appender.decisions.layout.type = PatternLayout
appender.decisions.layout.pattern = %m%n
rootLogger.level = warn
rootLogger.appenderRef.decisions.ref = decisions
logger.authorizer.name = kafka.authorizer.logger
logger.authorizer.level = debug
"""
_DECISION: Final = re.compile(
    r"Principal = User:(?P<user>\S+) is (?P<verdict>Allowed|Denied) operation = (?P<operation>\w+) "
    r"from host = \S+ on resource = (?P<kind>\w+):LITERAL:(?P<name>\S+) "
)


class Right(NamedTuple):
    """One operation on one resource, or on all whose names begin with `name`."""

    kind: str
    name: str
    operation: str
    prefixed: bool = False

    def __str__(self) -> str:
        return f"{self.operation} {self.kind} {self.name}{'*' if self.prefixed else ''}"


class Decision(NamedTuple):
    """A broker's decision about one request's resource."""

    user: str
    is_allowed: bool
    operation: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    name: str
    password: str = field(repr=False)
    ca: Path

    @property
    def client(self) -> dict[str, Any]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": self.name,
            "sasl.password": self.password,
            "ssl.ca.location": str(self.ca),
        }

    @property
    def settings(self) -> dict[str, Any]:
        return {"consumer": self.client, "producer": self.client, "admin": self.client}


class SecuredBroker:
    """Users reach it at `address`; the test at `plain`, as a super user."""

    def __init__(self, plain: Cluster, address: str, ca: Path, decisions: Path) -> None:
        self.plain = plain
        self.address = address
        self._ca = ca
        self._decisions = decisions
        self._admin = AdminClient({"bootstrap.servers": plain.bootstrap_servers})

    def user(self, rights: Iterable[Right], *, name: str = "") -> User:
        """Return a new user with these rights and no others."""
        user = User(
            name=name or f"user-{secrets.token_hex(4)}", password=secrets.token_hex(8), ca=self._ca
        )
        credentials = UserScramCredentialUpsertion(
            user.name,
            ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096),
            user.password.encode(),
        )
        for answer in self._admin.alter_user_scram_credentials([credentials]).values():
            answer.result(PATIENCE_S)
        self.grant(user, rights)
        return user

    def grant(self, user: User, rights: Iterable[Right]) -> None:
        bindings = [_binding(user, right) for right in rights]
        for answer in self._admin.create_acls(bindings).values() if bindings else ():
            answer.result(PATIENCE_S)

    def revoke(self, user: User, right: Right) -> None:
        """Take a right back; the broker has applied it on return."""
        pattern = AclBindingFilter(*_fields(user, right))
        (answer,) = self._admin.delete_acls([pattern]).values()
        assert len(answer.result(PATIENCE_S)) == 1, right
        until(lambda: not self._has(pattern), f"{right} is gone")

    def _has(self, pattern: AclBindingFilter) -> bool:
        return bool(self._admin.describe_acls(pattern).result(PATIENCE_S))

    def decisions(self, *users: User) -> set[Decision]:
        """Return the broker's decisions about requests of these users."""
        names = {user.name for user in users}
        text = self._decisions.read_text(errors="replace")
        return {
            Decision(
                user=match["user"],
                is_allowed=match["verdict"] == "Allowed",
                operation=match["operation"],
                kind=match["kind"],
                name=match["name"],
            )
            for match in _DECISION.finditer(text)
            if match["user"] in names
        }


def everything() -> list[Right]:
    """Return all rights on all resources."""
    wide = [Right(kind, "*", "ALL") for kind in ("Topic", "Group", "TransactionalId")]
    return [*wide, Right("Cluster", "kafka-cluster", "ALL")]


def _fields(user: User, right: Right) -> tuple[Any, ...]:
    pattern = ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL
    return (
        _KINDS[right.kind],
        right.name,
        pattern,
        f"User:{user.name}",
        "*",
        AclOperation[right.operation],
        AclPermissionType.ALLOW,
    )


def _binding(user: User, right: Right) -> AclBinding:
    return AclBinding(*_fields(user, right))


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for socket_ in sockets:
        socket_.bind(("127.0.0.1", 0))
    ports = [int(socket_.getsockname()[1]) for socket_ in sockets]
    for socket_ in sockets:
        socket_.close()
    return ports


def create_certificate(folder: Path, password: str) -> tuple[Path, Path]:
    """Return key store and PEM of a certificate for 127.0.0.1, made by keytool."""
    keytool = find_java().executable.with_name("keytool")
    if not keytool.exists():
        pytest.skip("this Java has no keytool to make a certificate with")
    store, pem = folder / "broker.p12", folder / "broker.pem"
    keystore = ["-keystore", str(store), "-storetype", "PKCS12"]
    common = [*keystore, "-storepass", password, "-alias", "b"]
    make = ["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=localhost"]
    names = ["-ext", "SAN=ip:127.0.0.1", "-ext", "BC=ca:true", "-validity", "2"]
    for command in ([*make, *names], ["-exportcert", "-rfc", "-file", str(pem)]):
        subprocess.run([keytool, *command, *common], check=True, capture_output=True, timeout=300)
    return store, pem


@contextmanager
def secured_broker(folder: Path) -> Iterator[SecuredBroker]:
    key_password = secrets.token_hex(8)
    store, pem = create_certificate(folder, key_password)
    decisions, log4j = folder / "decisions.log", folder / "log4j2.properties"
    log4j.write_text(_LOG4J.format(decisions=decisions))
    plain, secure, controller = free_ports(3)
    doors = {"BROKER": plain, "SECURE": secure, "CONTROLLER": controller}
    broker = KafkaBroker(
        jvm_options=[f"-Dlog4j2.configurationFile={log4j.as_uri()}"],
        properties={
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in doors.items()),
            "listener.security.protocol.map": "BROKER:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": _ANONYMOUS,
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.secure.scram-sha-256.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "ssl.keystore.location": str(store),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": key_password,
            "ssl.key.password": key_password,
        },
    )
    with broker:
        cluster = Cluster(f"127.0.0.1:{plain}")
        try:
            yield SecuredBroker(cluster, f"127.0.0.1:{secure}", pem, decisions)
        finally:
            cluster.close()
