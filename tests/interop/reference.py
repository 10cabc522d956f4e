"""Kafka Streams' answers: `Reference.java`, compiled once, on its own jars."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment.java import compiled_command
from tests.interop.cases import Case

_SOURCE = Path(__file__).with_name("Reference.java")
#: Base, and per case; its driver opens and closes RocksDB.
_TIMEOUT_S = 300
_CASE_TIMEOUT_S = 0.3


def ask(cases: Sequence[Case]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(case.as_json()) + "\n" for case in cases)
    java, *rest = compiled_command(_SOURCE)
    with tempfile.TemporaryDirectory(prefix="kafka-streams-") as state:
        done = subprocess.run(
            [java, f"-Djava.io.tmpdir={state}", *rest],
            input=lines,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S + _CASE_TIMEOUT_S * len(cases),
            check=False,
        )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(cases), done.stderr[-3000:]
    return answers
