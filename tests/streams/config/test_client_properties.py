import functools
from typing import Any, Literal

import pytest

from tests.streams.config import objects
from tests.streams.config.objects import Assigning
from tidewheel.streams.config import StreamsConfig, import_object, importable_name
from tidewheel.streams.errors import ConfigError


def made(kind: str, properties: dict[str, Any]) -> Any:
    return getattr(StreamsConfig(application_id="shop", **{kind: properties}), kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "key", "value", "next_step"),
    [
        ("consumer", "sasl.jaas.config", "canary", "set sasl.username and sasl.password"),
        ("admin", "ssl.truststore.location", "/x", "set ssl.ca.location to a PEM file"),
        ("producer", "key.serializer", "x", "key_serde="),
        ("consumer", "max.poll.records", 5, "set max_poll_records"),
        ("consumer", "isolation.level", "read_uncommitted", "every consumer reads committed records; remove it"),
        ("consumer", "group.id", "x", "named by application_id"),
        ("consumer", "group.instance.id", "x", "set group_instance_id"),
        ("consumer", "enable.auto.commit", True, "commits offsets itself"),
        ("consumer", "enable.auto.offset.store", "true", "commits offsets itself"),
        ("consumer", "auto.offset.reset", "latest", "set auto_offset_reset"),
        ("consumer", "session.timeout.ms", 1, "set session_timeout_ms"),
        ("consumer", "heartbeat.interval.ms", 1, "set heartbeat_interval_ms"),
        ("consumer", "max.poll.interval.ms", 1, "set worker_hang_timeout_ms"),
        ("consumer", "partition.assignment.strategy", "range", "set task_assignor"),
        ("consumer", "on_commit", print, "commits offsets itself"),
        ("producer", "transactional.id", "x", "fence each other"),
        ("producer", "transaction.timeout.ms", 1, "set worker_hang_timeout_ms"),
        ("producer", "enable.idempotence", False, "transactions need it"),
        ("producer", "acks", 1, "transactions need acks=all"),
        ("producer", "partitioner", "random", "partitioning; give partitioner="),
        ("producer", "message.max.bytes", 5, "max.message.bytes decides"),
        ("admin", "logger", "x", "goes to Python's logging"),
        ("consumer", "enable.partition.eof", False, "see where partitions end"),
        ("producer", "dr_cb", print, "set production_exception_handler"),
        ("producer", "on_delivery", print, "set production_exception_handler"),
        ("admin", "bootstrap.servers", "x:1", "set bootstrap_servers"),
        ("consumer", "bootstrap.servers", "x:1", "set bootstrap_servers"),
        ("producer", "metadata.broker.list", "x:1", "set bootstrap_servers"),
        ("consumer", "isolation_level", "x", "names have dots; write 'isolation.level'"),
        ("admin", "linger.ms", None, "must be text, a number or a boolean, not NoneType"),
        ("admin", "linger.ms", [1], "must be text, a number or a boolean, not list"),
        ("consumer", "oauth_cb", lambda config: None, "is a lambda, and other processes can't import it"),
        ("consumer", "oauth_cb", 5, 'must be a function or its "module:name"'),
        ("consumer", "oauth_cb", "token", 'write it as "module:name"'),
    ],
)  # fmt: skip
def test_properties_that_are_ours(kind: str, key: str, value: Any, next_step: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(kind, {key: value})

    assert str(caught.value).startswith(f"{kind}[{key!r}]=")
    assert "(keyword): " in str(caught.value)
    assert next_step in str(caught.value)


def test_the_source_of_a_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_CONSUMER__GROUP_ID", "x")
    with pytest.raises(
        ConfigError,
        match=r"^consumer\['group.id'\]='x' \(environment variable TIDEWHEEL_CONSUMER__GROUP_ID\)",
    ):
        made("consumer", {"linger.ms": 5})


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        ("consumer", {"isolation.level": "read_committed", "enable.auto.commit": False}),
        ("producer", {"enable.idempotence": "true", "acks": "all"}),
        ("producer", {"acks": -1, "linger.ms": 5.5, "log_level": 3}),
        ("admin", {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}),
    ],
)
def test_other_properties_pass_through(
    kind: Literal["consumer", "producer", "admin"], properties: dict[str, Any]
) -> None:
    assert made(kind, properties) == properties


@pytest.mark.parametrize(
    ("key", "value"),
    [("enable.ssl.certificate.verification", value) for value in (False, "False", "f", "0", 0)]
    + [("ssl.endpoint.identification.algorithm", "none")],
)
def test_each_way_to_accept_any_certificate_is_a_caution(key: str, value: object) -> None:
    encrypted = {"security.protocol": "ssl", key: value}
    config = StreamsConfig(
        application_id="shop", consumer=encrypted, producer=encrypted, admin=encrypted
    )
    assert [key in text for text in config.cautions()] == [True] * 3


def test_cautions() -> None:
    quiet = StreamsConfig(application_id="shop")
    encrypted = {"security.protocol": "SSL"}
    loud = quiet.replace(consumer=encrypted | {"enable.ssl.certificate.verification": "False"})
    even = quiet.replace(consumer=encrypted, producer=encrypted, admin=encrypted)

    assert quiet.cautions() == even.cautions() == []
    assert len(loud.cautions()) == 2
    assert "pose as the broker" in loud.cautions()[0]
    assert "consumer: ssl, producer: plaintext, admin: plaintext" in loud.cautions()[1]


@pytest.mark.parametrize(
    ("obj", "name"),
    [
        (objects.assignor, "tests.streams.config.objects:assignor"),
        (Assigning, "tests.streams.config.objects:Assigning"),
        (Assigning.static, "tests.streams.config.objects:Assigning.static"),
        (Assigning.build, "tests.streams.config.objects:Assigning.build"),
        ("shop.placement:Spread.make", "shop.placement:Spread.make"),
    ],
)
def test_importable_objects_have_names(obj: Any, name: str) -> None:
    assert importable_name(obj) == name


def in_main(config: str) -> str:
    return config


in_main.__module__ = "__main__"


def pretender() -> None: ...


pretender.__qualname__ = "test_cautions"


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        (lambda: None, "is a lambda"),
        (functools.partial(objects.token), r"partial\(token\) object has no name"),
        (objects.CELSIUS.serialize, "is not the object that other processes import"),
        (Assigning().method, "is not the object that other processes import"),
        (
            in_main,
            r"main file \(__main__\), which other processes can't import; move it to a module",
        ),
        (pretender, "is not the object that other processes import"),
        ("sticky", 'write it as "module:name"'),
        ("a:b:c", 'write it as "module:name"'),
        ("../a:b", 'write it as "module:name"'),
    ],
)
def test_objects_without_a_name(obj: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        importable_name(obj)


def test_functions_inside_functions_have_no_name() -> None:
    def closure() -> None: ...

    with pytest.raises(ConfigError, match=r"defined inside a function.*module:name"):
        importable_name(closure)


@pytest.mark.parametrize("obj", [objects.assignor, Assigning, Assigning.static])
def test_names_resolve_to_objects(obj: Any) -> None:
    assert import_object(importable_name(obj)) is obj


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module_7391:x", "can't import module 'no_such_module_7391'"),
        ("json:loads.nothing", "module 'json' has no 'loads.nothing'"),
        ("json", 'write it as "module:name"'),
    ],
)
def test_names_without_an_object_are_errors(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        import_object(name)


def test_K4_a_factor_with_one_thread_is_reported_as_without_effect() -> None:
    factor = StreamsConfig(application_id="shop", parallelising_factor=8)
    assert factor.cautions() == []
    assert factor.replace(num_stream_threads=4).cautions() == []
    (said,) = factor.replace(num_stream_threads=1).cautions()
    assert said.startswith("parallelising_factor=8 has no effect with num_stream_threads=1")
