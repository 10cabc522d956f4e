"""Secrets are never shown, and resolved late."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
import rich

from tests.streams.config import objects
from tidewheel.state_stores.bulk_restore.urls import redacted_url
from tidewheel.streams.config import StreamsConfig, redacted, resolve_secrets
from tidewheel.streams.errors import ConfigError

CANARY = "canary-7391"


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> StreamsConfig:
    monkeypatch.setenv("TIDEWHEEL_ADMIN__SASL_PASSWORD", CANARY)
    return StreamsConfig(
        application_id="shop",
        consumer={"sasl.password": CANARY, "linger.ms": 5, "unheard.of": CANARY, "oauth_cb": objects.token},
        producer={"ssl.key.password": "env:KEY_PASSWORD", "ssl.key.pem": CANARY},
        snapshot_location=f"s3://id:{CANARY}@bucket/path?token={CANARY}#{CANARY}",
    )  # fmt: skip


def texts(config: StreamsConfig) -> dict[str, str]:
    pretty = io.StringIO()
    rich.print(config, file=pretty)
    return {
        "repr": repr(config),
        "str": str(config),
        "format": f"{config}",
        "dump": repr(config.model_dump()),
        "json": config.model_dump_json(),
        "describe": repr(config.describe()),
        "rich": pretty.getvalue(),
        "copy": repr(config.replace(num_standby_replicas=1)),
    }


@pytest.mark.parametrize(
    "form", ["repr", "str", "format", "dump", "json", "describe", "rich", "copy"]
)
def test_no_text_of_a_config_has_a_secret(config: StreamsConfig, form: str) -> None:
    text = texts(config)[form]

    assert CANARY not in text
    assert "***" in text
    assert "linger.ms" in text
    assert "env:KEY_PASSWORD" in text


def test_clients_get_the_secrets(config: StreamsConfig) -> None:
    assert config.consumer["sasl.password"] == CANARY
    assert config.admin == {"sasl.password": CANARY}
    assert config.snapshot_location == f"s3://id:{CANARY}@bucket/path?token={CANARY}#{CANARY}"


def test_no_error_has_a_secret() -> None:
    for options in (
        {"consumer": {"sasl.password": CANARY, "group.id": CANARY}},
        {"consumer": {"sasl.password": [CANARY]}},
        {"consumer": {"sasl_password": CANARY}},
        {"consumer": [CANARY]},
        {"consumer": {"sasl.password": CANARY}, "commit_interval_ms": -1},
        {"snapshot_location": f"s3://a:{CANARY}@b", "commit_interval_ms": -1},
    ):
        with pytest.raises(ConfigError) as caught:
            StreamsConfig(application_id="shop", **options)
        assert CANARY not in str(caught.value).replace(f"'group.id']='{CANARY}'", "")
        assert caught.value.__context__ is None or CANARY not in str(caught.value.__context__)


def test_describe_rows() -> None:
    rows = {
        row.option: row
        for row in StreamsConfig(
            application_id="shop", default_key_serde=str, task_assignor=objects.assignor,
            processing_exception_handler=objects.handler, topology_optimization={"single_store_self_join"},
        ).describe()
    }  # fmt: skip

    assert rows["application_id"].value == "shop"
    assert rows["application_id"].source == "keyword"
    assert rows["default_key_serde"].value == "string"
    assert rows["task_assignor"].value == "tests.streams.config.objects:assignor"
    assert rows["processing_exception_handler"].value == "tests.streams.config.objects:handler"
    assert rows["topology_optimization"].value == "['single_store_self_join']"
    assert rows["bootstrap_servers"].source == "default"
    assert rows["commit_interval_ms"].description.startswith("Milliseconds between commits")
    assert all("\n" not in row.description for row in rows.values())
    assert set(StreamsConfig.model_fields) <= {option.split(".")[0] for option in rows}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("security.protocol", "SASL_SSL", "SASL_SSL"),
        ("fetch.wait.max.ms", 5, 5),
        ("sasl.password", "file:/run/secrets/x", "file:/run/secrets/x"),
        ("sasl.password", "env:X Y", "***"),
        ("sasl.password", "file:relative", "***"),
        ("sasl.jaas.config", "x", "***"),
        ("sasl.oauthbearer.config", "x", "***"),
        ("sasl.oauthbearer.client.secret", "x", "***"),
        ("ssl.key.location", "/k", "/k"),
        ("SASL.PASSWORD", "x", "***"),
    ],
)
def test_allow_list(key: str, value: Any, expected: Any) -> None:
    assert redacted({key: value}) == {key: expected}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/backup", "/backup"),
        ("s3://bucket/path", "s3://bucket/path"),
        ("s3://id@bucket", "s3://***@bucket"),
        ("https://x/y?sig=z#f", "https://x/y?***#***"),
        ("s3://[bad", "***"),
        ("simplecache::sftp://key:secret@host/x", "simplecache::sftp://***@host/x"),
        ("zip://a.zip::s3://key:secret@bucket?sig=z", "zip://a.zip::s3://***@bucket?***"),
        ("http://a:1,http://me:secret@b:2", "http://a:1,http://***@b:2"),
        ("http://me:secret@[::1]:8081", "http://***@[::1]:8081"),
    ],
)
def test_urls(url: str, shown: str) -> None:
    assert redacted_url(url) == shown


def test_references_are_resolved_late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "password"
    properties = {
        "sasl.password": f"file:{file}", "sasl.username": "env:KAFKA_USER", "linger.ms": 5, "client.id": "a:b",
        "oauth_cb": "tests.streams.config.objects:token",
    }  # fmt: skip
    config = StreamsConfig(application_id="shop", consumer=properties)
    monkeypatch.setenv("KAFKA_USER", "user")
    file.write_text("first\n")

    assert resolve_secrets(config.consumer, "consumer") == {
        "sasl.password": "first", "sasl.username": "user", "linger.ms": 5, "client.id": "a:b", "oauth_cb": objects.token,
    }  # fmt: skip
    file.write_bytes(b"second\r\n")
    assert resolve_secrets(config.consumer, "consumer")["sasl.password"] == "second"
    assert config.consumer["sasl.password"] == f"file:{file}"


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"pw", "pw"),
        (b"pw\n", "pw"),
        (b"pw\r\n", "pw"),
        (b"pw\r", "pw\r"),
        (b"pw\n\n", "pw\n"),
        (b"pw\r\r\n", "pw\r"),
        (b" pw ", " pw "),
        (b"\n", ""),
        (b"", ""),
    ],
)
def test_one_line_end_of_a_file_is_no_part_of_the_secret(
    content: bytes, secret: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    assert resolve_secrets({"sasl.password": f"file:{file}"}, "consumer") == {
        "sasl.password": secret
    }


def test_missing_references_name_the_property_and_the_place(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    for value, message in (
        (
            "env:NOT_THERE",
            r"producer\['sasl.password'\]: environment variable 'NOT_THERE' is not set",
        ),
        (f"file:{wrong}", "can't read secret file '.*wrong'"),
        (f"file:{tmp_path}", "can't read secret file"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve_secrets({"sasl.password": value}, "producer")
    wrong.write_bytes(b"\xffcanary")
    with pytest.raises(ConfigError, match="not UTF-8 text") as caught:
        resolve_secrets({"sasl.password": f"file:{wrong}"}, "producer")
    assert CANARY not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs an endless file")
def test_an_endless_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="larger than"):
        resolve_secrets({"sasl.password": f"file:{os.sep}dev{os.sep}zero"}, "producer")


@pytest.mark.parametrize(
    "key", ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location"]
)
def test_a_file_that_a_property_names_must_be_readable(tmp_path: Path, key: str) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(ConfigError) as caught:
        resolve_secrets({key: str(missing)}, "producer")
    assert f"producer[{key!r}]" in str(caught.value)
    assert str(missing) in str(caught.value)

    for usable in (str(tmp_path), "probe"):
        assert resolve_secrets({key: usable}, "producer") == {key: usable}
