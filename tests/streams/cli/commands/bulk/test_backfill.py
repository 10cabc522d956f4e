"""Command line of `tidewheel backfill`: options, plans, results, and exit codes."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import orjson
import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin
from tests.streams.group.fake_group import APP, GroupAdmin
from tidewheel.bulk import BulkProgress, BulkStep, FrameSource
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.bulk.backfill.computation import BackfillReport, HistoryFrame
from tidewheel.streams.bulk.backfill.driver import BackfillRefused
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode

_COMMAND = "tidewheel.streams.cli.commands.bulk.backfill"
_CHANGELOG = f"{APP}-counts-changelog"

PROGRAM = """
from tidewheel import *


class Ticking(Processor):
    def init(self, context):
        super().init(context)
        context.schedule(1_000, PunctuationType.WALL_CLOCK_TIME, print)

    def process(self, record): ...


builder = StreamsBuilder()
orders = builder.stream("orders", key_serde=str, value_serde=str)
orders.process(Ticking, name="ticking")
counts = orders.group_by(lambda _, value: value, key_serde=str, value_serde=str).count(store="counts")
counts.to_stream().to("totals", key_serde=str, value_serde=int)
builder.global_table("countries", key_serde=str, value_serde=str, store="countries")
config = StreamsConfig(application_id="shop")
topology = builder.build(config)
"""


class _Admin(GroupAdmin):
    def found(self) -> Self:
        return self


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    """Return a cluster with 5 orders in two partitions, and 3 countries."""
    broker = FakeBroker()
    for topic, partitions in (("orders", 2), ("totals", 2), ("countries", 1)):
        broker.create_topic(topic, partitions)
    for number in range(5):
        broker.send("orders", b"v", b"k", partition=number % 2, timestamp=1_000 * number)
    for _ in range(3):
        broker.send("countries", b"v", b"k")
    command = "tidewheel.streams.bulk.backfill.command"
    monkeypatch.setattr(f"{command}.KafkaResetAdmin", lambda _: _Admin(broker))
    return broker


@pytest.fixture
def target(tmp_path: Path) -> str:
    file = tmp_path / f"shop_{secrets.token_hex(4)}.py"  # a module is loaded once per name
    file.write_text(PROGRAM, encoding="utf-8")
    return f"{file}:topology"


@pytest.fixture
def run(target: str) -> Callable[..., int]:
    return lambda *arguments: main(["backfill", target, *arguments])


def test_a_dry_run_shows_the_plan_the_cost_and_what_is_not_exact(
    broker: FakeBroker,
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    options = ("--outputs", "topics", "--dry-run", "--accept", "order")
    assert run(*options) == ExitCode.OK
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"Plan of a backfill of {APP}" in shown
    assert "read orders 2 partitions, at most 5 records" in shown
    assert "read countries 1 partitions, at most 3 records" in shown
    assert "pass 1 sub-topology 0: 2 tasks read orders" in shown
    assert f"write {_CHANGELOG}" in shown
    assert "20 s to start Spark" in shown
    assert "not exact (needs --accept wall-clock) ticking (" in shown


def test_a_dry_run_as_json(
    broker: FakeBroker, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--outputs", "discard", "--dry-run", "--json", "--accept", "wall-clock")
    bounds = ("--from", "orders=timestamp:1500", "--until", "timestamp:3500")
    assert run(*options, *bounds) == ExitCode.OK
    plan = orjson.loads(capsys.readouterr().out)
    assert plan["application_id"] == APP
    # Orders of 2 s and 3 s. All countries are read, as workers do.
    assert plan["ranges"] == {"countries-0": [0, 3], "orders-0": [1, 2], "orders-1": [1, 2]}
    assert plan["records"] == 5
    assert [each["reads"] for each in plan["passes"]] == [
        ["orders"],
        [f"{APP}-counts-repartition"],
    ]
    assert [each["tasks"] for each in plan["passes"]] == [2, 2]
    assert plan["changelogs"] == [_CHANGELOG]
    (difference,) = plan["differences"]
    assert (difference["reason"], difference["accepted"]) == ("wall-clock", True)
    assert difference["node"].startswith("ticking (")


def test_a_dry_run_changes_nothing(broker: FakeBroker, run: Callable[..., int]) -> None:
    before = {name: len(topic.logs) for name, topic in broker.topics.items()}
    assert run("--outputs", "topics", "--dry-run") == ExitCode.OK
    assert {name: len(topic.logs) for name, topic in broker.topics.items()} == before
    assert broker.fenced == []


def test_a_difference_that_is_not_accepted_ends_the_command(
    broker: FakeBroker, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--outputs", "discard") == ExitCode.USAGE
    errors = capsys.readouterr().err
    assert "wall-clock: ticking (" in errors
    assert "--accept wall-clock" in errors


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_an_application_that_has_begun_is_refused(
    broker: FakeBroker,
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    FakeAdmin(broker).alter_committed(APP, {TopicPartition("orders", 0): 1})
    if not options:
        monkeypatch.setattr(f"{_COMMAND}.backfill", _refused)
    assert run("--outputs", "discard", "--accept", "wall-clock", *options) == ExitCode.REFUSED
    assert "committed offsets" in capsys.readouterr().err


def _refused(*_: Any, **__: Any) -> BackfillReport:
    raise BackfillRefused("shop has committed offsets")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "the topology writes to topics; say what becomes of the records"),
        (("--outputs", "topic"), "outputs is 'topic'; say what becomes of the records"),
        (("--from", "orders"), "--from 'orders': write the topic and =, such as --from orders="),
        (("--from", "=latest"), "--from '=latest': write the topic and ="),
        (("--from", "orders="), "--from 'orders=': write the topic and ="),
        (("--from", "a=latest", "--from", "a=earliest"), "--from names a twice; write it once"),
        (("--from", "orders=noon"), "input offsets 'noon'"),
        (("--from", "lines=earliest"), "lines is not a source topic of the topology; it reads"),
        (("--until", "noon"), "input offsets 'noon'"),
        (("--until", "file:nowhere.json"), "nowhere.json"),
        (("--history", "orders"), "--history 'orders': write the topic and =, such as --history"),
        (("--history", "a=x", "--history", "a=y"), "--history names a twice"),
        (("--history", "lines=x.csv"), "lines"),
        (("--history", "countries=x.csv"), "countries"),
        (("--history-until", "orders=5"), "there is no --history of orders; give its SOURCE, too"),
        (("--history-order-by", "orders=id"), "there is no --history of orders"),
        (
            ("--history", "orders=x.csv", "--history-until", "orders=noon"),
            "--history-until 'noon': write milliseconds since the epoch",
        ),
        (("--accept", "order,time"), "accept names time; it may name wall-clock, cache, order"),
        (("--accept", " , "), "--accept ' , ' names nothing"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_malformed_options_are_usage_errors(
    broker: FakeBroker,
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    problem: str,
    *,
    dry: bool,
) -> None:
    given = (
        arguments
        if not arguments or "--outputs" in arguments
        else (*arguments, "--outputs", "discard")
    )
    assert run(*given, *(["--dry-run"] if dry else [])) == ExitCode.USAGE
    assert problem in capsys.readouterr().err


_REPORT = BackfillReport(
    records=1_234,
    stores={"counts": 56},
    outputs={"totals": 7_890},
    input_offsets={TopicPartition("orders", 0): 1_000, TopicPartition("orders", 1): 234},
)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options with which the command calls `backfill`."""
    options: dict[str, Any] = {}

    def backfill(_topology: object, _config: object, **given: Any) -> BackfillReport:
        options.update(given)
        given["on_step"](BulkStep(phase="begin", text="pausing [the group]"))
        given["on_progress"](BulkProgress(step="pass 1", done=5, total=5, elapsed_s=1.0))
        return _REPORT

    monkeypatch.setattr(f"{_COMMAND}.backfill", backfill)
    return options


def test_all_options_reach_the_backfill(run: Callable[..., int], called: dict[str, Any]) -> None:
    code = run(
        *(
            "--outputs",
            "s3://lake/out",
            "--from",
            "orders=timestamp:5",
            "--until",
            "file:ends.json",
        ),
        *("--history", "orders=lake.orders", "--history-format", "delta"),
        *("--history-select", "id AS key", "--history-until", "orders=9"),
        *("--history-order-by", "orders=at,id", "--accept", "order, gap"),
        *("--work", "s3://lake/work", "--restart", "--master", "local[3]"),
    )
    assert code == ExitCode.OK
    del called["on_step"], called["on_progress"]
    assert called == {
        "outputs": "s3://lake/out",
        "history": {
            "orders": HistoryFrame(
                FrameSource(source="lake.orders", file_format="delta", select=("id AS key",)),
                until_ms=9,
                order_by=("at", "id"),
            )
        },
        "begins": {"orders": "timestamp:5"},
        "until": "file:ends.json",
        "until_of": None,
        "accept": ("order", "gap"),
        "work": "s3://lake/work",
        "restart": True,
        "master": "local[3]",
    }


def test_results_and_steps_as_text(
    run: Callable[..., int], called: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--outputs", "topics") == ExitCode.OK
    captured = capsys.readouterr()
    assert "• pausing [the group]" in captured.err
    shown = " ".join(captured.out.replace("│", " ").split())
    assert f"Application {APP} is ready to start" in shown
    assert "records read, at most 1,234" in shown
    assert "rows of store counts 56" in shown
    assert "records for totals 7,890" in shown
    assert "orders-0 continues at 1,000" in shown


def test_results_and_steps_as_json_lines(
    run: Callable[..., int], called: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--outputs", "topics", "--json") == ExitCode.OK
    step, progress, report = map(orjson.loads, capsys.readouterr().out.splitlines())
    assert step == {"step": "begin", "text": "pausing [the group]"}
    assert (progress["step"], progress["done"], progress["total"]) == ("pass 1", 5, 5)
    assert report == {
        "records": 1_234,
        "stores": {"counts": 56},
        "outputs": {"totals": 7_890},
        "input_offsets": {"orders-0": 1_000, "orders-1": 234},
    }
