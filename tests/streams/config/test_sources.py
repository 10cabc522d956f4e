import logging
from pathlib import Path
from typing import Any

import pytest

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_order_of_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        Path("tidewheel.toml"),
        'application_id = "from-file"\nrack_id = "from-file"\ncommit_interval_ms = "1m"\n',
    )
    monkeypatch.setenv("TIDEWHEEL_RACK_ID", "from-environment")
    monkeypatch.setenv("TIDEWHEEL_COMMIT_INTERVAL_MS", "2s")
    config = StreamsConfig(commit_interval_ms=3)

    assert (config.commit_interval_ms, config.rack_id, config.application_id) == (
        3, "from-environment", "from-file",
    )  # fmt: skip
    assert config.source_of("commit_interval_ms") == "keyword"
    assert config.source_of("rack_id") == "environment variable TIDEWHEEL_RACK_ID"
    assert config.source_of("application_id") == "tidewheel.toml, key application_id"
    assert config.source_of("state_dir") == "default"


def test_tables_are_merged_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        Path("tidewheel.toml"),
        """
        application_id = "shop"
        [consumer]
        security.protocol = "SASL_SSL"
        "sasl.username" = "from-file"
        "fetch.min.bytes" = 1
        [producer]
        """,
    )
    monkeypatch.setenv("TIDEWHEEL_CONSUMER", '{"sasl.username": "from-json", "linger.ms": 1}')
    monkeypatch.setenv("TIDEWHEEL_CONSUMER__SASL_PASSWORD", "secret")
    monkeypatch.setenv("TIDEWHEEL_CONSUMER__LINGER_MS", "2")
    monkeypatch.setenv("TIDEWHEEL_CONSUMER__LOG_LEVEL", "3")
    monkeypatch.setenv("TIDEWHEEL_CLIENT_TAGS__ZONE", "a")
    config = StreamsConfig(consumer={"fetch.min.bytes": 2}, producer={"linger.ms": 3})

    assert config.consumer == {
        "fetch.min.bytes": 2, "sasl.password": "secret", "linger.ms": "2", "log_level": "3",
        "sasl.username": "from-json", "security.protocol": "SASL_SSL",
    }  # fmt: skip
    assert config.producer == {"linger.ms": 3}
    assert config.client_tags == {"zone": "a"}
    sources = {row.option: row.source for row in config.describe()}
    assert sources["consumer.fetch.min.bytes"] == "keyword"
    assert sources["consumer.linger.ms"] == "environment variable TIDEWHEEL_CONSUMER__LINGER_MS"
    assert sources["consumer.sasl.username"] == "environment variable TIDEWHEEL_CONSUMER"
    assert sources["consumer.security.protocol"] == "tidewheel.toml, key consumer"


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_RACK_ID", "")

    assert StreamsConfig(application_id="shop").rack_id is None


def test_the_environment_may_name_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(Path("tidewheel.toml"), 'application_id = "here"\n')
    monkeypatch.setenv(
        "TIDEWHEEL_CONFIG_FILE", str(write(tmp_path / "x.toml", 'application_id = "there"\n'))
    )

    assert StreamsConfig().application_id == "there"


def test_from_toml_reads_only_that_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(Path("tidewheel.toml"), 'rack_id = "here"\n')
    monkeypatch.setenv("TIDEWHEEL_COMMIT_INTERVAL_MS", "5")
    file = write(tmp_path / "x.toml", 'application_id = "shop"\ncommit_interval_ms = 1\n')
    config = StreamsConfig.from_toml(file, num_standby_replicas=1)

    assert (config.application_id, config.rack_id) == ("shop", None)
    assert (config.commit_interval_ms, config.num_standby_replicas) == (5, 1)


@pytest.mark.parametrize(
    ("options", "variable", "file", "message"),
    [
        ({"commit_intervall_ms": 5}, None, None, "unknown option commit_intervall_ms (keyword): did you mean commit_interval_ms?"),
        ({"sasl_password": "canary"}, None, None, "librdkafka properties go into kafka, or into consumer, producer or admin"),
        ({"xyz": "canary"}, None, None, "`tidewheel config show` lists all options"),
        ({}, "TIDEWHEEL_COMIT_INTERVAL_MS", None, "unknown environment variable TIDEWHEEL_COMIT_INTERVAL_MS: did you mean commit_interval_ms?"),
        ({}, "TIDEWHEEL_RACK_ID__X", None, "unknown environment variable TIDEWHEEL_RACK_ID__X"),
        ({}, "TIDEWHEEL_CONSUMER__", None, "unknown environment variable TIDEWHEEL_CONSUMER__"),
        ({}, "TIDEWHEEL_BOOTSTRAP_SERVER", None, "did you mean bootstrap_servers?"),
        ({}, "TIDEWHEEL_CONSUMR__SASL_PASSWORD", None, "did you mean consumer?"),
        ({}, "TIDEWHEEL_CONSUMER_SASL_PASSWORD", None, "write TIDEWHEEL_CONSUMER__SASL_PASSWORD"),
        ({}, "TIDEWHEEL_SASL_PASSWORD", None, "librdkafka properties go into kafka, or into consumer, producer or admin"),
        ({}, None, '"commit.interval.ms" = 5', "unknown option commit.interval.ms (tidewheel.toml, key commit.interval.ms): did you mean commit_interval_ms?"),
        ({}, None, '[consumers]\na = "canary"', "did you mean consumer?"),
    ],
)  # fmt: skip
def test_unknown_names_are_errors(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    variable: str | None,
    file: str | None,
    message: str,
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "canary")
    if file is not None:
        write(Path("tidewheel.toml"), file)
    with pytest.raises(ConfigError) as caught:
        StreamsConfig(application_id="shop", **options)

    assert message in str(caught.value)
    assert "canary" not in str(caught.value)


def test_variables_of_our_tools_are_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_CACHE_DIR", "/x")
    monkeypatch.setenv("TIDEWHEEL_TEST_BROKER", "x")

    assert StreamsConfig(application_id="shop").application_id == "shop"


@pytest.mark.parametrize(
    "name",
    [
        "TIDEWHEEL_PORT",
        "TIDEWHEEL_PORT_8080_TCP",
        "TIDEWHEEL_PORT_8080_TCP_PROTO",
        "TIDEWHEEL_PORT_53_UDP_ADDR",
        "TIDEWHEEL_SERVICE_HOST",
        "TIDEWHEEL_SERVICE_PORT",
        "TIDEWHEEL_SERVICE_PORT_HTTP",
        "TIDEWHEEL_CONSUMER_SERVICE_HOST",
        "TIDEWHEEL_APPLICATION_SERVER_PORT_80_TCP",
        "TIDEWHEEL_IMAGE_TAG",
        "TIDEWHEEL_",
    ],
)
def test_variables_of_other_programs_are_ignored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setenv(name, "canary")
    with caplog.at_level(logging.DEBUG, logger="tidewheel.streams.config.sources"):
        config = StreamsConfig(application_id="shop")

    assert config == StreamsConfig(application_id="shop")
    assert name in caplog.text
    assert "canary" not in caplog.text


def test_bad_values_name_the_variable_or_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_COMMIT_INTERVAL_MS", "soon")
    write(Path("tidewheel.toml"), 'application_id = "shop"\nnum_standby_replicas = -1\n')
    with pytest.raises(ConfigError) as caught:
        StreamsConfig()

    assert "commit_interval_ms='soon' (environment variable TIDEWHEEL_COMMIT_INTERVAL_MS): " in str(
        caught.value
    )
    assert "num_standby_replicas=-1 (tidewheel.toml, key num_standby_replicas): " in str(
        caught.value
    )


@pytest.mark.parametrize("text", ["{sasl: canary", '["canary"]', "canary"])
def test_a_table_in_a_variable_is_json(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TIDEWHEEL_CONSUMER", text)
    with pytest.raises(ConfigError, match="TIDEWHEEL_CONSUMER__NAME") as caught:
        StreamsConfig(application_id="shop")

    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"application_id = ", "is not TOML: Invalid value"),
        (b"\xff", "is not TOML"),
        (None, "can't be read"),
    ],
)
def test_a_file_that_is_no_settings_file(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "x.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        StreamsConfig.from_toml(file)

    assert "x.toml" in str(caught.value)


def test_an_invalid_keyword_is_not_hidden_by_a_table_in_a_file() -> None:
    write(Path("tidewheel.toml"), '[consumer]\n"linger.ms" = 5\n')
    with pytest.raises(ConfigError, match=r"^consumer='\*\*\*' \(keyword\): must be a table"):
        StreamsConfig(application_id="shop", consumer="linger.ms=5")  # type: ignore[arg-type]


def test_an_empty_table_adds_nothing() -> None:
    write(Path("tidewheel.toml"), "[consumer]\n[producer]\n")
    config = StreamsConfig(application_id="shop", consumer={"linger.ms": 5})

    assert (config.consumer, config.producer) == ({"linger.ms": 5}, {})
    assert config.source_of("producer") == "tidewheel.toml, key producer"
