"""Kafka Streams itself, to be asked what it does: `Reference.java`, compiled once, on its own jars."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.java import compiled_command
from tests.interop.cases import Case

_SOURCE = Path(__file__).with_name("Reference.java")
_TIMEOUT_S = 300


def ask(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return Kafka Streams' answer to each case: {"outputs": [...]} or {"error": ...}."""
    lines = "".join(json.dumps(case.as_json()) + "\n" for case in cases)
    done = subprocess.run(
        compiled_command(_SOURCE),
        input=lines,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(cases), done.stderr[-3000:]
    return answers
