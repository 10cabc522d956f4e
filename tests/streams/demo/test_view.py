"""Output of the demo."""

import io
import json

import pytest
from rich.console import Console

from tidewheel.streams.demo.view import DemoView, JsonView, ResultTable, TerminalView


def _talk(view: DemoView) -> None:
    view.print_event("broker", "Kafka: [localhost]:1", servers="localhost:1")
    with view.work("load", "load flights", 20) as advance:
        for done in range(1, 21):
            advance(done, "fast")
    table = ResultTable(topic="t", title="Results", columns=("k", "v"), rows=(("a", "1"),), more=3)
    view.results([table], {"t": {"a": 1}})
    view.verdict("All right.", good=True)


def test_json_output_has_a_line_for_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    _talk(JsonView())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {
        "event": "broker",
        "message": "Kafka: [localhost]:1",
        "servers": "localhost:1",
    }
    assert 10 <= sum(line["event"] == "load" for line in lines) <= 12
    assert {"event": "result", "message": "t", "key": "a", "value": 1} in lines
    assert lines[-1] == {"event": "verdict", "message": "All right.", "ok": True}


def test_text_output_has_bars_and_tables() -> None:
    out = io.StringIO()
    _talk(TerminalView(Console(file=out, width=100)))
    said = out.getvalue()
    for text in (
        "Kafka: [localhost]:1",
        "load flights",
        "20/20",
        "Results",
        "and 3 more",
        "All right.",
    ):
        assert text in said
