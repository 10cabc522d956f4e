"""Serdes of `produce` and `consume` that the topology of the settings gives."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidewheel.streams.cli.commands.records.record_lines import RecordLines, record_lines
from tidewheel.streams.errors import ConfigError
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

PROGRAM = """
from dataclasses import dataclass
from tidewheel import Serdes, StreamsBuilder, TimeWindows

@dataclass
class View:
    page: str

def topology():
    builder = StreamsBuilder()
    views = builder.stream("views", key_serde=str, value_serde=Serdes.json(View))
    builder.global_table("pages", key_serde=int, value_serde=str)
    counts = views.group_by(lambda view: view.page, key_serde=str, name="pages")
    counts.windowed_by(TimeWindows("1m")).count().to_stream().to("counts")
    return builder
"""
MINUTE = 1_795_262_400_000


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "viewed.py").write_text(PROGRAM)
    (tmp_path / "tidewheel.toml").write_text('application_id = "a"\ntopology = "viewed:topology"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("viewed", None)


def of_topic(topic: str, key: str | None = None, value: str | None = None) -> RecordLines:
    return record_lines(topic, key, value, (), None)


@pytest.mark.parametrize(
    ("topic", "key", "value", "data"),
    [
        ("views", "ann", {"page": "/"}, b'{"page":"/"}'),
        ("a-pages-repartition", "ann", {"page": "/"}, b'{"page":"/"}'),
        ("counts", {"key": "/", "start": MINUTE, "end": MINUTE + 60_000}, 7, (7).to_bytes(8)),
        ("pages", 5, "/", b"/"),
    ],
)
def test_a_topic_of_the_topology_has_its_serdes(
    topic: str, key: Any, value: Any, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = of_topic(topic)
    assert "viewed:topology" in capsys.readouterr().err
    record = lines.record(1, json.dumps({"key": key, "value": value}))
    assert record.value == data
    (line,) = lines.lines(SourceRecords(topic, 0, [0], [record.key], [record.value], [1], None))
    shown = json.loads(line)
    assert (shown["key"], shown["value"]) == (key, value)


def test_an_option_wins(capsys: pytest.CaptureFixture[str]) -> None:
    assert of_topic("views", value="string").record(1, '{"value": "x"}').value == b"x"
    shown = capsys.readouterr().err
    assert "--key string" in shown
    assert "--value" not in shown


def test_both_options_do_without_the_program(project: Path) -> None:
    (project / "viewed.py").write_text("raise RuntimeError")
    assert of_topic("views", "string", "string").record(1, '{"value": "x"}').value == b"x"
    with pytest.raises(ConfigError, match=r"RuntimeError.*give --key and --value"):
        of_topic("views")


def test_another_topic_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert of_topic("elsewhere").record(1, '{"value": "x"}').value == b"x"
    assert capsys.readouterr().err == ""


def test_without_a_topology_a_topic_is_text(project: Path) -> None:
    (project / "tidewheel.toml").unlink()
    assert of_topic("views").record(1, '{"value": "x"}').value == b"x"
