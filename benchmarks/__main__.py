"""Command line of the benchmarks: lists suites, runs one, and makes tables of documents.

    python -m benchmarks                                  the suites
    python -m benchmarks throughput --quick               a small run of the same shape
    python -m benchmarks throughput                       a full run; kept in benchmarks/results/
    python -m benchmarks table [--document FILE]          tables from the kept results

Exit codes: 0 all results are right; 1 a run failed or a result is wrong; 2 the command line is
wrong.
"""

import argparse
import dataclasses
import datetime as dt
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import KafkaException
from rich.console import Console
from rich.table import Table

from benchmarks import throughput
from benchmarks.backfill import plan as backfill
from benchmarks.backfill.suite import BackfillSuite
from benchmarks.coordinator import suite as coordinator
from benchmarks.environment import machine
from benchmarks.environment.broker import BenchmarkBroker, NoBrokerError, benchmark_broker
from benchmarks.environment.python_environment import PeerEnvironmentError
from benchmarks.environment.systems import SYSTEMS
from benchmarks.handoff import suite as handoff
from benchmarks.handoff.members import HANDOFF_SYSTEMS
from benchmarks.jobs import plan
from benchmarks.latency import suite as latency
from benchmarks.memory import suite as memory
from benchmarks.parallel import plan as parallel
from benchmarks.parallel.suite import ParallelSuite
from benchmarks.report import results, table
from benchmarks.report.results import GUARANTEES, Row, SuiteResult
from benchmarks.restore import suite as restore
from benchmarks.shards import plan as shards
from benchmarks.shards.suite import ShardsSuite
from benchmarks.suites import SUITES
from benchmarks.throughput import FULL, QUICK, Selection, ThroughputSuite
from benchmarks.topics.input_topic import TopicError
from tidewheel.streams.errors import StreamsError

WIDTH = 110
_OWN_DEFAULT = "own"
#: Minimum of each number.
_LEAST = (("pairs", 1), ("threads", 1), ("records", 1000))


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width; 80 columns would cut the tables
        console = Console(width=WIDTH)
    if options.suite is None:
        _check_options(parser, options, "the list of suites", ())
        console.print(_suites_table())
        return 0
    if options.suite == "table":
        _check_options(parser, options, "table", ("--document",))
        document = Path(options.document or "docs/performance.md")
        if not document.is_file():
            parser.error(f"--document {document}: there is no such file")
        return _write_tables(document, console)
    suite = SUITES.get(options.suite)
    if suite is None:
        parser.error(f"unknown suite {options.suite!r}: the suites are {', '.join(SUITES)}")
    if not suite.jobs:
        parser.error(f"the suite {suite.name} is laid down but not built yet: it comes later")
    _check_options(parser, options, f"the suite {suite.name}", suite.takes)
    _check_kept(parser, options, suite.name)
    try:
        return _RUN[suite.name](parser, options, console)
    except (StreamsError, PeerEnvironmentError, NoBrokerError, TopicError) as error:
        text = str(error)
    except (KafkaException, TimeoutError) as error:
        place = f"at {options.bootstrap_servers}" if options.bootstrap_servers else "started here"
        text = f"the broker {place} failed, or no longer answers: {error!r}"
    console.print(text, style="red", markup=False, soft_wrap=True)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks.")
    add = parser.add_argument
    add("suite", nargs="?", help="a suite, or `table`; without it the suites are listed")
    add("--quick", action="store_true", help="a smaller run of the same shape")
    add("--jobs", help="only these jobs, separated by commas")
    add("--systems", help="only these systems, in this order")
    add("--guarantees", help=f"only these of {', '.join(GUARANTEES)}")
    add(
        "--commit-intervals",
        help=f"only these intervals in ms; {_OWN_DEFAULT}: each system's own default",
    )
    add("--caches", help="only these of 0 (every update is an output), 10MiB and all (all keys)")
    add("--factors", help="only these parallelising factors (suite parallel)")
    add("--pairs", type=int, help="how many rounds of A B (suite handoff: how many cycles)")
    add("--threads", type=int, help="Kafka Streams' threads; by default the best of 1, 2 and 4")
    add(
        "--records",
        type=int,
        help="how many records (suite handoff: keys) instead of the size's; a quarter is untimed",
    )
    add("--bootstrap-servers", help="a broker that runs already, instead of one started here")
    add("--logs", type=Path, help="keep the instances' logs in this folder (suite handoff)")
    add("--json", type=Path, help="write the result to this file")
    add(
        "--keep",
        action="store_true",
        help="keep rows of fewer rounds or systems than a full run, too",
    )
    add(
        "--document",
        help="for `table`: the document with the markers; by default docs/performance.md",
    )
    return parser


def _check_options(
    parser: argparse.ArgumentParser, options: argparse.Namespace, who: str, takes: tuple[str, ...]
) -> None:
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in vars(options).items()
        if name != "suite" and value is not None and value is not False
    ]
    refused = [option for option in given if option not in takes]
    if refused:
        parser.error(
            f"{who} does not take {', '.join(refused)}: it takes {', '.join(takes) or 'no options'}"
        )
    for option, least in _LEAST:
        value = getattr(options, option)
        if value is not None and value < least:
            parser.error(f"--{option} {value}: at least {least}")


def _check_kept(parser: argparse.ArgumentParser, options: argparse.Namespace, suite: str) -> None:
    """Exit before any run if its result cannot be stored."""
    if options.keep and (options.quick or options.records is not None):
        parser.error("--keep: rows of another size do not mix with those of full runs")
    path: Path | None = options.json
    if path is None:
        return
    if path.resolve() == results.results_path(suite).resolve():
        parser.error(f"--json {path}: rows of full runs are there; --keep puts a run's beside them")
    try:
        there = results.load(path)
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # unreadable, or another format
        parser.error(f"--json {path}: {error}; name a new file, or one with results of {suite}")
    if there is not None and there.suite != suite:
        parser.error(f"--json {path} has results of {there.suite}: name another file for {suite}")


def _names(
    parser: argparse.ArgumentParser,
    option: str,
    value: str | None,
    known: tuple[str, ...],
    default: tuple[str, ...] | None = None,
) -> tuple[str, ...]:
    """Return the names of an option, each once; without it the default, or all."""
    if value is None:
        return known if default is None else default
    chosen = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        parser.error(f"{option} {value!r}: choose from {', '.join(known)}")
    return chosen


def _selection(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Selection:
    size = QUICK if options.quick else FULL
    intervals = size.commit_intervals_ms
    if options.commit_intervals is not None:
        parts = [part.strip() for part in options.commit_intervals.split(",")]
        try:
            intervals = tuple(int(part) for part in parts if part != _OWN_DEFAULT)
        except ValueError:
            parser.error(
                f"--commit-intervals {options.commit_intervals!r}: give milliseconds, or {_OWN_DEFAULT}"
            )
        if min(intervals, default=1) < 1:
            parser.error(f"--commit-intervals {options.commit_intervals}: at least 1")
        size = dataclasses.replace(size, own_defaults=_OWN_DEFAULT in parts)
    if options.pairs is not None:
        size = dataclasses.replace(size, pairs=options.pairs)
    if options.records is not None:
        probe_records = min(size.probe_records, options.records)
        size = dataclasses.replace(size, records=options.records, probe_records=probe_records)
    return Selection(
        size=size,
        jobs=_names(parser, "--jobs", options.jobs, throughput.JOBS),
        systems=_names(parser, "--systems", options.systems, tuple(SYSTEMS)),
        guarantees=_names(parser, "--guarantees", options.guarantees, GUARANTEES, size.guarantees),
        commit_intervals_ms=intervals,
        caches=_names(parser, "--caches", options.caches, tuple(plan.CACHES), size.caches),
        threads=options.threads,
    )


def _why_nothing(selection: Selection) -> str:
    reasons: list[str] = []
    for job in (plan.JOBS[name] for name in selection.jobs):
        able = [SYSTEMS[name] for name in selection.systems if name not in job.lacking]
        if not able:
            lacking = ", ".join(f"{name} ({job.lacking[name]})" for name in selection.systems)
            reasons.append(f"{job.name} is not for {lacking}")
        elif not any(set(selection.guarantees) & set(system.guarantees) for system in able):
            names = ", ".join(system.name for system in able)
            reasons.append(f"{job.name} has no {' or '.join(selection.guarantees)} on {names}")
        elif not set(selection.caches) & set(job.caches):
            reasons.append(f"{job.name} runs with --caches {','.join(job.caches)} only")
        elif "0" not in selection.caches and not any(system.cache for system in able):
            names = ", ".join(system.name for system in able)
            reasons.append(f"{job.name} runs with --caches 0 only on {names}")
        else:
            reasons.append(f"{job.name} has no rows of own defaults of these systems")
    return "; ".join(reasons)


def _run_throughput(
    parser: argparse.ArgumentParser, options: argparse.Namespace, console: Console
) -> int:
    date = _today()
    selection = _selection(parser, options)
    if not any(throughput.settings(selection)):
        parser.error(f"nothing is left to run: {_why_nothing(selection)}")
    paths = _paths(
        options,
        "throughput",
        rounds=FULL.pairs,
        everything=set(selection.systems) == set(SYSTEMS),
    )
    with benchmark_broker(options.bootstrap_servers) as broker:
        suite = ThroughputSuite(broker.bootstrap_servers, selection, console, date)
        result = _empty_result("throughput", date, selection.systems, broker)
        return _collect(suite.rows(), result, paths, suite.failures, console)


def _run_handoff(
    parser: argparse.ArgumentParser, options: argparse.Namespace, console: Console
) -> int:
    date = _today()
    size = handoff.QUICK if options.quick else handoff.FULL
    systems = _names(parser, "--systems", options.systems, tuple(HANDOFF_SYSTEMS))
    if options.pairs is not None:
        size = dataclasses.replace(size, cycles=options.pairs)
    if options.records is not None:
        size = dataclasses.replace(size, keys=options.records)
    paths = _paths(
        options,
        "handoff",
        rounds=handoff.FULL.cycles,
        everything=set(systems) == set(HANDOFF_SYSTEMS),
    )
    with benchmark_broker(options.bootstrap_servers) as broker:
        suite = handoff.HandoffSuite(
            bootstrap_servers=broker.bootstrap_servers,
            size=size,
            jobs=_names(parser, "--jobs", options.jobs, handoff.JOBS),
            systems=systems,
            guarantees=_names(parser, "--guarantees", options.guarantees, GUARANTEES),
            console=console,
            date=date,
            logs=options.logs,
        )
        result = _empty_result("handoff", date, systems, broker)
        return _collect(suite.rows(), result, paths, suite.failures, console)


def _run_coordinator(
    parser: argparse.ArgumentParser, options: argparse.Namespace, console: Console
) -> int:
    date = _today()
    size = coordinator.QUICK if options.quick else coordinator.FULL
    if options.pairs is not None:
        size = dataclasses.replace(size, rounds=options.pairs)
    systems = _names(parser, "--systems", options.systems, ("tidewheel",))
    suite = coordinator.CoordinatorSuite(
        size=size,
        jobs=_names(parser, "--jobs", options.jobs, coordinator.JOBS),
        console=console,
        date=date,
    )
    paths = _paths(options, "coordinator", rounds=coordinator.FULL.rounds, everything=True)
    result = _empty_result("coordinator", date, systems, None)
    return _collect(suite.rows(), result, paths, suite.failures, console)


def _run_latency(
    parser: argparse.ArgumentParser, options: argparse.Namespace, console: Console
) -> int:
    date = _today()
    size = latency.with_pairs(latency.QUICK if options.quick else latency.FULL, options.pairs)
    _names(parser, "--jobs", options.jobs, latency.JOBS)  # there is one
    systems = _names(parser, "--systems", options.systems, latency.SYSTEM_NAMES)
    caches = _names(parser, "--caches", options.caches, latency.CACHES)
    if "0" not in caches and set(systems) <= latency.WITHOUT_CACHE:
        parser.error(f"nothing is left to run: {', '.join(systems)} runs with --caches 0 only")
    paths = _paths(
        options,
        "latency",
        rounds=latency.FULL.pairs,
        everything=set(systems) == set(latency.SYSTEM_NAMES),
    )
    with benchmark_broker(options.bootstrap_servers) as broker:
        suite = latency.LatencySuite(
            bootstrap_servers=broker.bootstrap_servers,
            size=size,
            systems=systems,
            guarantees=_names(parser, "--guarantees", options.guarantees, GUARANTEES),
            caches=caches,
            threads=options.threads,
            console=console,
            date=date,
        )
        result = _empty_result("latency", date, systems, broker)
        return _collect(suite.rows(), result, paths, suite.failures, console)


def _run_memory(
    parser: argparse.ArgumentParser, options: argparse.Namespace, console: Console
) -> int:
    date = _today()
    size = memory.QUICK if options.quick else memory.FULL
    if options.pairs not in (None, 1):
        parser.error(f"--pairs {options.pairs}: the suite memory runs one round")
    _names(parser, "--jobs", options.jobs, memory.JOBS)  # there is one
    systems = _names(parser, "--systems", options.systems, memory.SYSTEM_NAMES)
    paths = _paths(options, "memory", rounds=1, everything=set(systems) == set(memory.SYSTEM_NAMES))
    with benchmark_broker(options.bootstrap_servers) as broker:
        suite = memory.MemorySuite(
            bootstrap_servers=broker.bootstrap_servers,
            size=size,
            systems=systems,
            threads=options.threads,
            console=console,
            date=date,
        )
        result = _empty_result("memory", date, systems, broker)
        return _collect(suite.rows(), result, paths, suite.failures, console)


def _run_parallel(
    parser: argparse.ArgumentParser, options: argparse.Namespace, console: Console
) -> int:
    date = _today()
    size = parallel.QUICK if options.quick else parallel.FULL
    if options.pairs is not None:
        size = dataclasses.replace(size, pairs=options.pairs)
    systems = _names(parser, "--systems", options.systems, parallel.SYSTEM_NAMES)
    known = tuple(str(factor) for factor in parallel.KNOWN_FACTORS)
    factors = _names(parser, "--factors", options.factors, known)
    jobs = _names(parser, "--jobs", options.jobs, tuple(parallel.JOBS))
    settings = list(
        parallel.settings(
            size,
            jobs=jobs,
            systems=systems,
            guarantees=_names(
                parser, "--guarantees", options.guarantees, GUARANTEES, ("exactly_once",)
            ),
            factors=frozenset(map(int, factors)),
        )
    )
    if not settings:
        why = "; ".join(
            f"{job.name} runs at --factors {','.join(map(str, job.factors))} on tidewheel"
            for job in (parallel.JOBS[name] for name in jobs)
        )
        parser.error(f"nothing is left to run: {why}")
    paths = _paths(
        options,
        "parallel",
        rounds=parallel.FULL.pairs,
        everything=set(systems) == set(parallel.SYSTEM_NAMES) and set(factors) == set(known),
    )
    with benchmark_broker(options.bootstrap_servers) as broker:
        suite = ParallelSuite(broker.bootstrap_servers, size.pairs, console, date)
        result = _empty_result("parallel", date, systems, broker)
        return _collect(suite.rows(iter(settings)), result, paths, suite.failures, console)


def _run_shards(
    parser: argparse.ArgumentParser, options: argparse.Namespace, console: Console
) -> int:
    date = _today()
    size = shards.QUICK if options.quick else shards.FULL
    if options.pairs is not None:
        size = dataclasses.replace(size, pairs=options.pairs)
    systems = _names(parser, "--systems", options.systems, ("tidewheel",))
    jobs = _names(parser, "--jobs", options.jobs, tuple(shards.JOBS))
    paths = _paths(options, "shards", rounds=shards.FULL.pairs, everything=True)
    with benchmark_broker(options.bootstrap_servers) as broker:
        suite = ShardsSuite(broker.bootstrap_servers, size, console, date)
        result = _empty_result("shards", date, systems, broker)
        rows = suite.rows([shards.JOBS[name] for name in jobs])
        return _collect(rows, result, paths, suite.failures, console)


def _run_backfill(
    parser: argparse.ArgumentParser, options: argparse.Namespace, console: Console
) -> int:
    date = _today()
    size = backfill.QUICK if options.quick else backfill.FULL
    if options.pairs is not None:
        size = dataclasses.replace(size, pairs=options.pairs)
    if options.records is not None:
        size = dataclasses.replace(size, records=options.records)
    systems = _names(parser, "--systems", options.systems, backfill.SYSTEM_NAMES)
    paths = _paths(
        options,
        "backfill",
        rounds=backfill.FULL.pairs,
        everything=set(systems) == set(backfill.SYSTEM_NAMES),
    )
    with benchmark_broker(options.bootstrap_servers) as broker:
        suite = BackfillSuite(
            bootstrap_servers=broker.bootstrap_servers,
            size=size,
            jobs=_names(parser, "--jobs", options.jobs, backfill.JOBS),
            systems=systems,
            console=console,
            date=date,
        )
        result = _empty_result("backfill", date, ("tidewheel", *systems), broker)
        return _collect(suite.rows(), result, paths, suite.failures, console)


def _run_restore(
    parser: argparse.ArgumentParser, options: argparse.Namespace, console: Console
) -> int:
    date = _today()
    size = restore.with_size(
        restore.QUICK if options.quick else restore.FULL,
        records=options.records,
        pairs=options.pairs,
    )
    systems = _names(parser, "--systems", options.systems, restore.SYSTEM_NAMES)
    jobs = tuple(
        job
        for job in _names(parser, "--jobs", options.jobs, restore.JOBS)
        if set(systems) & restore.SYSTEMS_OF[job]
    )
    if not jobs:
        parser.error(f"nothing is left to run: no job of these runs on {', '.join(systems)}")
    paths = _paths(
        options,
        "restore",
        rounds=restore.FULL.pairs,
        everything=set(systems) == set(restore.SYSTEM_NAMES),
    )
    with benchmark_broker(options.bootstrap_servers) as broker:
        suite = restore.RestoreSuite(
            bootstrap_servers=broker.bootstrap_servers,
            size=size,
            jobs=jobs,
            systems=systems,
            console=console,
            date=date,
        )
        result = _empty_result("restore", date, systems, broker)
        return _collect(suite.rows(), result, paths, suite.failures, console)


_RUN = {
    "backfill": _run_backfill,
    "coordinator": _run_coordinator,
    "handoff": _run_handoff,
    "latency": _run_latency,
    "memory": _run_memory,
    "parallel": _run_parallel,
    "restore": _run_restore,
    "shards": _run_shards,
    "throughput": _run_throughput,
}


def _today() -> str:
    return dt.datetime.now(tz=dt.UTC).date().isoformat()  # noqa: TID251 - the program's edge


def _paths(options: argparse.Namespace, suite: str, *, rounds: int, everything: bool) -> list[Path]:
    """Return the files for the rows: the one of `--json`, and the kept results of a full run.

    A full run has at least the suite's rounds, all systems, and the best number of threads.
    `--keep` also stores smaller runs: each row has its number of runs.
    """
    full = (
        everything
        and not options.quick
        and options.records is None
        and options.threads is None
        and (options.pairs is None or options.pairs >= rounds)
    )
    asked = [] if options.json is None else [options.json]
    return [*asked, results.results_path(suite)] if full or options.keep else asked


def _empty_result(
    suite: str, date: str, systems: Iterable[str], broker: BenchmarkBroker | None
) -> SuiteResult:
    return SuiteResult(
        suite=suite,
        date=date,
        cpu=machine.cpu_name(),
        cores=machine.cores(),
        versions=machine.versions(
            frozenset(systems), kafka=None if broker is None else broker.version
        ),
    )


def _collect(
    found: Iterable[list[Row]],
    result: SuiteResult,
    paths: list[Path],
    failures: list[str],
    console: Console,
) -> int:
    before = {path: results.load(path) for path in paths}
    try:
        for rows in found:
            result = dataclasses.replace(result, rows=(*result.rows, *rows))
            for path in paths:  # after each setting: an interrupted run keeps its rows
                results.save(results.merged(before[path], result), path)
    finally:
        for path, old in before.items():
            for line in results.fewer_runs(old, result):
                console.print(f"{path}: {line}", style="yellow", markup=False, soft_wrap=True)
    if result.rows:
        console.print(table.rich_tables(result))
        console.print(*(f"written to {path}" for path in paths), sep="\n", soft_wrap=True)
    for failure in failures:
        console.print(f"no figure: {failure}", style="red", markup=False, soft_wrap=True)
    return 1 if failures else 0


def _write_tables(document: Path, console: Console) -> int:
    kept = [results.load(results.results_path(name)) for name in SUITES]
    try:
        written = table.write_tables(document, [each for each in kept if each is not None])
    except (OSError, ValueError) as error:  # unreadable or unwritable, or a marker is missing
        console.print(f"{document}: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    if not written:
        console.print(
            f"{document} has no markers for a suite with results: add lines such as"
            " <!-- benchmarks:throughput --> and <!-- /benchmarks:throughput -->",
            markup=False,
        )
        return 1
    console.print(f"{document}: {', '.join(written)}")
    return 0


def _suites_table() -> Table:
    listing = Table(title="python -m benchmarks SUITE")
    for heading in ("suite", "what it measures", "jobs", "not built yet"):
        listing.add_column(heading)
    for suite in SUITES.values():
        listing.add_row(
            suite.name,
            suite.summary,
            ", ".join(suite.jobs) or "-",
            ", ".join(suite.later_jobs),
        )
    return listing


if __name__ == "__main__":
    # Like Ctrl-C: it ends the broker and the measured system.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
