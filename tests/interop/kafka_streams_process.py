"""`SharedTopics.java` in a process: Kafka's serializers and Kafka Streams on a real broker."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.environment.java import compiled_command

_SOURCE = Path(__file__).with_name("SharedTopics.java")
#: Log warnings; start fast, as it runs briefly.
_OPTIONS = (
    "-Dorg.apache.logging.log4j.level=WARN",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
)
_END_S = 30

Row = tuple[Any, Any, int]
RowWithHeaders = tuple[Any, Any, int, Sequence[tuple[str, str | None]]]


class KafkaStreamsProcess:
    def __init__(self, bootstrap_servers: str, log_path: Path) -> None:
        java, *rest = compiled_command(_SOURCE)
        self._log_path = log_path
        self._printed: list[str] = []
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [java, *_OPTIONS, *rest, bootstrap_servers],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def write(
        self, topic: str, key: str, value: str, records: Sequence[Row | RowWithHeaders]
    ) -> None:
        self._carry_out("write", topic=topic, key=key, value=value, records=records)

    def read(self, topic: str, key: str, value: str) -> list[Row]:
        answer = self._carry_out("read", topic=topic, key=key, value=value)
        return [(key, value, timestamp) for key, value, timestamp in answer["records"]]

    def start(self, application_id: str, name: str, **options: str) -> None:
        self._carry_out("start", application_id=application_id, name=name, **options)

    def stop(self, application_id: str, *, leave_group: bool = True) -> None:
        self._carry_out("stop", application_id=application_id, leave_group=leave_group)

    @property
    def log(self) -> str:
        return "".join(self._printed) + self._log_path.read_text()

    def _carry_out(self, what: str, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **order}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                assert "error" not in answer, f"{answer['error']}: {self.log[-3000:]}"
                return answer
            self._printed.append(line)
        raise AssertionError(f"Kafka Streams' process has ended: {self.log[-3000:]}")
