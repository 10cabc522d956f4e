import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tidewheel import ConfigError
from tidewheel.streams.config.secrets import resolve_secrets
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.portable_settings import Keeper, opened_url, portable_settings

_SECRET = "canary-of-the-portable-settings"  # noqa: S105 - it is none
_SETTINGS = ClientSettings(
    bootstrap_servers="broker:9092",
    application_id="app",
    consumer={"sasl.password": _SECRET, "sasl.username": "me", "fetch.min.bytes": 5},
    admin={"sasl.password": "env:KAFKA_PASSWORD"},
)


def test_secrets_stay_on_this_machine_and_are_resolved_from_a_file() -> None:
    with portable_settings(_SETTINGS, same_machine=True) as travelling:
        assert _SECRET not in str([travelling.consumer, travelling.producer, travelling.admin])
        assert travelling.consumer["fetch.min.bytes"] == 5
        assert travelling.admin == {"sasl.password": "env:KAFKA_PASSWORD"}
        assert resolve_secrets(travelling.consumer, "consumer")["sasl.password"] == _SECRET
        path = Path(travelling.consumer["sasl.password"].removeprefix("file:"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


@pytest.mark.parametrize("secret", ["pw\n", "pw\r", "pw\r\n", "\n", "", " pw "])
def test_a_secret_reaches_the_other_process_unchanged(secret: str) -> None:
    settings = ClientSettings(
        bootstrap_servers="broker:9092", application_id="app", consumer={"sasl.password": secret}
    )
    with portable_settings(settings, same_machine=True) as travelling:
        assert resolve_secrets(travelling.consumer, "consumer") == {"sasl.password": secret}


def test_a_secret_is_not_sent_to_other_machines_unencrypted() -> None:
    with Keeper(same_machine=False) as keeper:
        with pytest.raises(ConfigError, match=r"consumer\['sasl.password'\].*env:NAME") as failure:
            keeper.settings(_SETTINGS)
        assert _SECRET not in str(failure.value)


def test_a_secret_may_be_sent_encrypted() -> None:
    with Keeper(same_machine=False, encrypted=True) as keeper:
        assert keeper.settings(_SETTINGS).consumer["sasl.password"] == _SECRET


def test_a_url_with_credentials_is_kept_too() -> None:
    url = f"s3://id:{_SECRET}@bucket/snapshots"
    with Keeper(same_machine=True) as keeper:
        travelling = keeper.url("snapshot_location", url)
        assert _SECRET not in travelling
        assert opened_url(travelling) == url
        assert keeper.url("snapshot_location", "s3://bucket/x") == "s3://bucket/x"
    with Keeper(same_machine=False) as keeper, pytest.raises(ConfigError, match="credentials"):
        keeper.url("snapshot_location", url)


def test_files_of_a_killed_process_are_deleted_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os, sys; from tidewheel.streams.kafka.portable_settings import Keeper; "
        "print(Keeper(same_machine=True).url('x', 's3://id:word@bucket'), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        kept = Path(other.stdout.readline().decode().strip().removeprefix("kept:file:"))
        other.stdout.close()
        begun = tmp_path / "tidewheel-secrets-begun"
        begun.mkdir()
        with Keeper(same_machine=True) as keeper:
            keeper.settings(_SETTINGS)
            assert kept.exists()
        other.kill()
    with Keeper(same_machine=True) as keeper:
        keeper.settings(_SETTINGS)
        assert not kept.parent.exists()
    assert list(tmp_path.iterdir()) == [begun]


def test_files_deleted_by_another_process_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "tidewheel-secrets-left"
    left.mkdir()
    (left / ".lock").touch()
    opened = os.open

    def then_gone(path: str | Path, *args: int, **options: Any) -> int:
        found = opened(path, *args, **options)
        if Path(path) == left / ".lock":
            shutil.rmtree(left)
        return found

    monkeypatch.setattr(os, "open", then_gone)
    with Keeper(same_machine=True) as keeper:
        keeper.settings(_SETTINGS)
        assert not left.exists()
