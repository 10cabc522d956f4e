"""`tidewheel run --http`: each worker has a port of its own, and names it."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.web import QueryClient

pytestmark = pytest.mark.timeout(600)

_PROGRAM = """
from tidewheel import StreamsBuilder

def topology():
    builder = StreamsBuilder()
    words = builder.stream("{topic}", key_serde=str, value_serde=str)
    words.group_by_key().count(store="counts")
    return builder
"""


@contextmanager
def _running(
    folder: Path, cluster: Cluster, name: str, *options: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    program, log = folder / "program.py", folder / f"{len(list(folder.iterdir()))}.log"
    program.write_text(_PROGRAM.format(topic=name), encoding="utf-8")
    command = [sys.executable, "-m", "tidewheel", "run", f"{program}:topology", *options]
    command += ["--bootstrap-servers", cluster.bootstrap_servers, "--application-id", name]
    command += ["--state-dir", str(folder / "state"), "--set", "commit_interval_ms=50"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stderr=output, stdout=output)
        try:
            yield process, log
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _urls(log: Path) -> list[str]:
    text = log.read_text(encoding="utf-8", errors="replace")
    return sorted(set(re.findall(r"http://127\.0\.0\.1:\d+", text)))


def _ready(url: str) -> bool:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def test_each_worker_of_a_command_answers_for_all_keys(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    name = f"run-{unique}"
    cluster.create({name: 4})
    with _running(tmp_path, cluster, name, "--workers", "2", "--http", "0") as (_, log):
        until(lambda: len(_urls(log)) == 2, "both workers name their address")
        urls = _urls(log)
        until(lambda: all(map(_ready, urls)), "both workers are ready")
        cluster.send(name, [(f"word-{number}".encode(), b"1") for number in range(12)])
        until(lambda: cluster.is_consumed(name, name), "the input is consumed")
        for url in urls:
            rows = QueryClient(url).range("counts")
            assert {row.key for row in rows} == {f"word-{number}" for number in range(12)}
        slots = {_slots(url) for url in urls}
        assert slots == {(0,), (1,)}
        port = urls[0].rpartition(":")[2]
        with _running(tmp_path, cluster, f"{name}-other", "--http", port) as (other, other_log):
            assert other.wait(PATIENCE_S) == ExitCode.USAGE
            assert f"port {port}" in other_log.read_text(encoding="utf-8")


def _slots(url: str) -> tuple[int, ...]:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
    connection.request("GET", "/state")
    state = json.loads(connection.getresponse().read())
    connection.close()
    return tuple(state["slots"])
