"""Settings files, environment variables, secrets and files of the state directory."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.damage import CHARACTERS, bounded, hostile
from tidewheel.state_stores.errors import StateStoreError
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.secrets import resolve_secrets
from tidewheel.streams.config.sources import FILE_VARIABLE, PREFIX, settings_file
from tidewheel.streams.errors import ConfigError

pytestmark = pytest.mark.fault("DOORS")

_FILE = b"""
application_id = "shop"
bootstrap_servers = "localhost:9092"
commit_interval_ms = "1.5s"
num_standby_replicas = 1
consumer = { security.protocol = "SSL", "fetch.min.bytes" = 5 }
client_tags = { zone = "a" }
at = 1979-05-27T07:32:00Z
[producer]
"linger.ms" = 5.0
"""
_OPTIONS = sorted(StreamsConfig.model_fields)
_TEXTS = st.text(CHARACTERS, max_size=20) | st.sampled_from(
    [
        "9" * 400,
        "9" * 5_000,
        "-1",
        "1e999",
        "nan",
        "{}",
        "[" * 100_000,
        '{"a":' * 5_000,
        '{"a": NaN}',
        "../../etc/passwd",
        "~nobody-here/x",
        "os:system",
        "env:",
        "file:/dev/null",
        "http://[::1",
        "\udcff",
        "1" + "_1" * 50,
        "9" * 18 + "d",
    ]
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings") / "tidewheel.toml"


@given(hostile([_FILE]))
@example(b"a = " + b"[" * 5_000)
@example(b"num_standby_replicas = " + b"9" * 5_000)
@example(b"consumer" + b".a" * 1_200 + b" = 1")
@example(b"client_tags" + b".a" * 1_200 + b" = 1")
def test_a_settings_file_is_read_or_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with bounded(), contextlib.suppress(ConfigError):
        config = StreamsConfig.from_toml(file)
        assert repr(config)
        config.model_copy()


@given(st.dictionaries(st.sampled_from(_OPTIONS), _TEXTS, max_size=3))
@example({"state_dir": "~nobody-here/x"})
@example({"snapshot_location": "~nobody-here/x"})
def test_environment_variables_are_read_or_refused(texts: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for option, text in texts.items():
            patch.setenv(PREFIX + option.upper(), text)
        with bounded(), contextlib.suppress(ConfigError):
            given_here: dict[str, Any] = {
                name: text
                for name, text in (("application_id", "shop"), ("bootstrap_servers", "localhost:1"))
                if name not in texts
            }
            assert repr(StreamsConfig(**given_here))


@given(_TEXTS)
@example("~nobody-here/x.toml")
@example("a" * 5_000)
def test_the_name_of_a_settings_file_is_a_path_or_refused(name: str) -> None:
    with bounded(), contextlib.suppress(ConfigError):
        path = settings_file({FILE_VARIABLE: name})
        assert path is None or StreamsConfig.from_toml(path).application_id


@given(
    st.sampled_from(["sasl.password", "oauth_cb", "url"]),
    st.sampled_from(["", "env:", "file:", "file:/", "x:"]),
    st.text(max_size=20) | _TEXTS,
)
@example("sasl.password", "file:", "a\0b")
@example("sasl.password", "env:", "\ud800")
def test_a_reference_to_a_secret_is_resolved_or_refused(key: str, scheme: str, text: str) -> None:
    with bounded(), contextlib.suppress(ConfigError):
        resolve_secrets({key: scheme + text}, "consumer")


_MEMBER = json.dumps({"version": 1, "member_id": "3f2a"}).encode()
_HOLDER = json.dumps({"pid": 7, "host": "shop-1", "member_id": "3f2a"}).encode()


@given(hostile([_MEMBER]), hostile([_HOLDER]))
@example(b"[" * 4_096, b"{" + b'"a":{' * 800)
@example(b'{"member_id": "../../etc"}', b'{"pid": true, "host": ["x"]}')
def test_any_files_in_a_slot_leave_it_usable(
    tmp_path_factory: pytest.TempPathFactory, member: bytes, holder: bytes
) -> None:
    root = tmp_path_factory.mktemp("state")
    slot = root / "shop" / "0"
    slot.mkdir(parents=True)
    (slot / "member.json").write_bytes(member)
    (slot / ".lock").write_bytes(holder)
    with bounded(), StateDirectory.acquire(root, "shop") as taken:
        assert taken.member_id.replace("-", "").replace(".", "").replace("_", "").isalnum()
        (slot / ".lock").write_bytes(holder)
        with StateDirectory.acquire(root, "shop") as other:
            assert other.slot == 1
            assert str(other.others[0])
        with pytest.raises(StateStoreError):
            StateDirectory.acquire(root, "shop", slot=0)
