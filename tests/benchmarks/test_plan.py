"""Runs of the suite `throughput`, and its command line."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from confluent_kafka import KafkaException

from benchmarks import __main__ as program
from benchmarks import throughput
from benchmarks.environment import broker, machine, systems
from benchmarks.report import results
from benchmarks.suites import SUITES
from benchmarks.throughput import FULL, QUICK, Selection, inputs_for, settings, untimed_records
from benchmarks.topics.input_topic import TopicError

COUNTS = Selection(jobs=("count_by_key",))


@pytest.fixture(autouse=True)
def _no_broker_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line that should be refused fails here instead of running for hours."""

    def started(_bootstrap_servers: str | None) -> None:
        raise AssertionError("a broker would be started now")

    monkeypatch.setattr(program, "benchmark_broker", started)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def names(selection: Selection) -> Counter[tuple[str, int, bool, str]]:
    return Counter(
        (setting.guarantee, setting.commit_interval_ms, setting.cache_bytes > 0, system.name)
        for setting in settings(selection)
        for system in setting.systems
    )


def test_no_setting_runs_twice() -> None:
    assert set(names(COUNTS).values()) == {1}
    runs = [
        (setting.job.name, setting.guarantee, setting.commit_interval_ms, setting.cache_bytes)
        for setting in settings(Selection())
    ]
    assert len(set(runs)) == len(runs)
    assert {job for job, *_ in runs} == set(throughput.JOBS)


def test_common_settings_include_every_system_that_supports_them() -> None:
    found = names(COUNTS)
    for guarantee in ("at_least_once", "exactly_once"):
        for interval_ms in (100, 1_000):
            here = {key[2:] for key in found if key[:2] == (guarantee, interval_ms)}
            assert here == {
                (False, "tidewheel"),
                (False, "tidewheel-workers-2"),
                (False, "tidewheel-workers-4"),
                (False, "kafka-streams"),
                (False, "quix"),
                (False, "faust"),
                *([(False, "bytewax")] if guarantee == "at_least_once" else []),
                (False, "raw-client"),
                (False, "raw-client-2"),
                (False, "by-hand"),
                (True, "by-hand"),
                (True, "quix"),
                (True, "tidewheel"),
                (True, "tidewheel-workers-2"),
                (True, "tidewheel-workers-4"),
                (True, "kafka-streams"),
            }


def test_own_defaults_run_where_they_are_not_a_common_interval() -> None:
    """Kafka Streams' 30 s, Quix Streams' 5 s and Faust's 2.8 s are rows of their own."""
    own = {key for key in names(COUNTS) if key[1] not in results.COMMON_INTERVALS_MS}
    assert own == {
        ("at_least_once", 30_000, False, "kafka-streams"),
        ("at_least_once", 30_000, True, "kafka-streams"),
        ("at_least_once", 5_000, False, "quix"),
        ("at_least_once", 5_000, True, "quix"),
        ("exactly_once", 5_000, False, "quix"),
        ("exactly_once", 5_000, True, "quix"),
        ("at_least_once", 2_800, False, "faust"),
        ("exactly_once", 2_800, False, "faust"),
    }


def test_a_guarantee_that_a_system_lacks_is_no_setting() -> None:
    alone = replace(COUNTS, systems=("bytewax",))
    assert {key[0] for key in names(alone)} == {"at_least_once"}
    assert not list(settings(replace(alone, guarantees=("exactly_once",))))


def test_quick_omits_own_defaults_and_is_smaller() -> None:
    quick = replace(COUNTS, size=QUICK)
    assert {key[1] for key in names(quick)} == {100, 1_000}
    assert QUICK.records < FULL.records
    assert QUICK.pairs == 1


def test_quick_runs_each_job_in_one_setting() -> None:
    parser = program._parser()
    selection = program._selection(parser, parser.parse_args(["throughput", "--quick"]))
    assert [setting.job.name for setting in settings(selection)] == list(throughput.JOBS)
    wider = ["throughput", "--quick", "--guarantees", "at_least_once,exactly_once", "--caches", "0"]
    selection = program._selection(parser, parser.parse_args(wider))
    assert len(list(settings(selection))) == 2 * len(throughput.JOBS)


def test_a_cache_that_changes_nothing_is_no_setting() -> None:
    caches: dict[str, set[int]] = {}
    for setting in settings(Selection()):
        caches.setdefault(setting.job.name, set()).add(setting.cache_bytes >> 20)
    assert caches["stateless_json"] == caches["stream_table_join"] == {0}
    assert caches["count_by_key"] == caches["tumbling_count"] == {0, 64}
    assert caches["count_by_key_large"] == {0, 10}


def test_only_the_count_has_rows_of_own_defaults() -> None:
    own = {
        setting.job.name
        for setting in settings(Selection())
        if setting.commit_interval_ms not in results.COMMON_INTERVALS_MS
    }
    assert own == {"count_by_key"}


def test_the_full_size_is_the_specified_one() -> None:
    setting = next(settings(COUNTS))
    (ours,) = inputs_for(systems.SYSTEMS["tidewheel"], setting, FULL)
    (quix,) = inputs_for(systems.SYSTEMS["quix"], setting, FULL)
    assert (ours.records, untimed_records(ours)) == (4_000_000, 1_000_000)
    assert (ours.keys, ours.partitions) == (100_000, 4)
    assert (quix.records, untimed_records(quix)) == (1_000_000, 250_000)
    (faust,) = inputs_for(systems.SYSTEMS["faust"], setting, FULL)
    assert (faust.records, untimed_records(faust)) == (200_000, 50_000)


def test_every_job_has_a_million_records() -> None:
    """For us and for Kafka Streams; rows loaded into a table before do not count."""
    for setting in settings(Selection()):
        inputs = inputs_for(systems.SYSTEMS["kafka-streams"], setting, FULL)
        assert sum(source.records for source in setting.job.work(inputs)) >= 1_000_000


def test_a_system_that_lacks_a_job_does_not_run_in_it() -> None:
    for setting in settings(Selection()):
        running = {system.name for system in setting.systems}
        assert not running & set(setting.job.lacking)
        assert {"tidewheel", "kafka-streams"} <= running or setting.job.own_defaults


def test_without_arguments_the_suites_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in SUITES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "the suites are throughput"),
        (["latency", "--systems", "faust"], "choose from tidewheel, kafka-streams, quix"),
        (["memory", "--systems", "quix"], "choose from tidewheel, kafka-streams"),
        (["shards", "--jobs", "count"], "choose from compute_1ms, compute_100us"),
        (["shards", "--systems", "quix"], "choose from tidewheel"),
        (["shards", "--factors", "2"], "shards does not take --factors:"),
        (["parallel", "--factors", "3"], "choose from 1, 2, 4, 16, 64, 256"),
        (["parallel", "--jobs", "count_by_key"], "choose from blocking_10ms"),
        (["parallel", "--systems", "faust"], "choose from tidewheel, kafka-streams, quix"),
        (
            ["throughput", "--systems", "flink"],
            "choose from tidewheel, tidewheel-workers-2, tidewheel-workers-4, kafka-streams",
        ),
        (["throughput", "--jobs", ""], "choose from stateless_json, count_by_key"),
        (["throughput", "--caches", "1"], "choose from 0, 10MiB, all"),
        (["throughput", "--guarantees", "never"], "choose from at_least_once"),
        (["throughput", "--commit-intervals", "often"], "give milliseconds"),
        (["throughput", "--pairs", "0"], "at least 1"),
        (["throughput", "--commit-intervals", "0"], "at least 1"),
        (["throughput", "--guarantees", ""], "choose from at_least_once"),
        (["throughput", "--caches", ""], "choose from 0, 10MiB, all"),
        (["latency", "--pairs", "0"], "at least 1"),
        (["latency", "--threads", "0"], "at least 1"),
        (["coordinator", "--pairs", "0"], "at least 1"),
        (["handoff", "--pairs", "-1"], "at least 1"),
        (["restore", "--records", "999"], "at least 1000"),
        (["memory", "--pairs", "2"], "the suite memory runs one round"),
        (["latency", "--quick", "--keep"], "do not mix with those of full runs"),
        (["latency", "--jobs", "nonsense"], "choose from count_by_key"),
        (["memory", "--jobs", "nonsense"], "choose from ten_minutes"),
        (["coordinator", "--jobs", "nonsense"], "choose from assemble, steady, scale_out, kill"),
        (["coordinator", "--systems", "quix"], "choose from tidewheel"),
        (
            ["memory", "--guarantees", "exactly_once"],
            "the suite memory does not take --guarantees: it takes --quick, --jobs, --systems,",
        ),
        (["memory", "--records", "5000"], "memory does not take --records:"),
        (["latency", "--factors", "4"], "latency does not take --factors:"),
        (["parallel", "--threads", "1", "--caches", "0"], "not take --caches, --threads:"),
        (["coordinator", "--bootstrap-servers", "a:1"], "not take --bootstrap-servers:"),
        (["restore", "--logs", "x", "--commit-intervals", "5"], "--commit-intervals, --logs:"),
        (["throughput", "--document", "README.md"], "throughput does not take --document:"),
        (["table", "--quick"], "table does not take --quick: it takes --document"),
        (["--pairs", "0"], "the list of suites does not take --pairs: it takes no options"),
        (["table", "--document", "no/such.md"], "no/such.md: there is no such file"),
    ],
)
def test_a_wrong_option_names_the_right_ones(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(arguments, capsys)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["throughput", "--jobs", "tumbling_count", "--systems", "raw-client"],
            "tumbling_count is not for raw-client (copies only)",
        ),
        (
            ["throughput", "--jobs", "stateless_json,count_by_key_large", "--caches", "all"],
            "stateless_json runs with --caches 0 only; count_by_key_large runs with --caches 0,10MiB only",
        ),
        (
            [
                "throughput",
                "--systems",
                "bytewax",
                "--jobs",
                "word_count",
                "--guarantees",
                "exactly_once",
            ],
            "word_count has no exactly_once on bytewax",
        ),
        (
            ["throughput", "--jobs", "count_by_key", "--systems", "faust", "--caches", "all"],
            "count_by_key runs with --caches 0 only on faust",
        ),
        (
            ["throughput", "--jobs", "word_count", "--commit-intervals", "own"],
            "word_count has no rows of own defaults of these systems",
        ),
        (
            ["parallel", "--jobs", "cpu_bound", "--systems", "quix"],
            "cpu_bound runs at --factors 1,4,16 on tidewheel",
        ),
        (["parallel", "--jobs", "cold_state", "--factors", "256"], "at --factors 1,2,4"),
        (["restore", "--jobs", "growth", "--systems", "quix"], "no job of these runs on quix"),
    ],
)
def test_an_empty_plan_names_its_reason_before_a_broker_is_started(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = refused(arguments, capsys)
    assert "nothing is left to run: " in text
    assert why in text


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_every_declared_option_is_an_option_of_the_parser(suite: str) -> None:
    known = set(program._parser()._option_string_actions)
    assert set(SUITES[suite].takes) <= known
    taken = {option for each in SUITES.values() for option in each.takes}
    assert known - taken == {"-h", "--help", "--document"}


def test_a_name_given_twice_is_run_once() -> None:
    parser = program._parser()
    given = parser.parse_args(["throughput", "--systems", "quix,tidewheel,quix"])
    assert program._selection(parser, given).systems == ("quix", "tidewheel")


@pytest.mark.parametrize(
    "arguments",
    [
        ["latency", "--jobs", "count_by_key"],
        ["memory", "--jobs", "ten_minutes", "--pairs", "1"],
        ["handoff", "--jobs", "kill", "--records", "5000", "--logs", "somewhere"],
        ["restore", "--jobs", "growth,changelog", "--systems", "quix"],
    ],
)
def test_options_of_a_suite_are_accepted(arguments: list[str]) -> None:
    with pytest.raises(AssertionError, match="a broker would be started now"):
        program.main(arguments)


def test_an_address_without_a_broker_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "benchmark_broker", broker.benchmark_broker)
    monkeypatch.setattr(broker, "ANSWER_S", 0.2)
    assert program.main(["latency", "--bootstrap-servers", "127.0.0.1:1"]) == 1
    assert "--bootstrap-servers 127.0.0.1:1: no broker answers" in capsys.readouterr().out


@pytest.mark.parametrize("there", [b"no json", b'{"suite": "latency"}', b""])
def test_a_file_without_results_is_refused_before_the_run(
    there: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(there)
    text = refused(["latency", "--json", str(path)], capsys)
    assert f"--json {path}: " in text
    assert "name a new file, or one with results of latency" in text
    assert path.read_bytes() == there


def test_rows_of_full_runs_are_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    path = results.results_path("latency")
    text = refused(["latency", "--quick", "--json", str(path)], capsys)
    assert f"--json {path}: rows of full runs are there" in text


def test_results_of_another_suite_are_not_overwritten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = results.results_path("latency")
    text = refused(["memory", "--json", str(path)], capsys)
    assert f"--json {path} has results of latency: name another file for memory" in text


def test_a_topic_that_cannot_be_created_is_reported_in_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise TopicError("bench-in has 3 records instead of 4")

    monkeypatch.setattr(program, "benchmark_broker", refuse)
    assert program.main(["latency"]) == 1
    assert capsys.readouterr().out == "bench-in has 3 records instead of 4\n"


@contextmanager
def no_broker(_bootstrap_servers: str | None) -> Iterator[broker.BenchmarkBroker]:
    yield broker.BenchmarkBroker("broker.test:9092", None)


def rows_of(runs: int) -> list[results.Row]:
    return results.make_rows(
        {"records_per_s": [1.0] * runs},
        system="tidewheel",
        job="count_by_key",
        guarantee="exactly_once",
        parameters={"commit_interval_ms": 100, "cache_bytes": 0, "records": 1},
    )


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of throughput rows; a run has one row per round, without a broker."""
    monkeypatch.setattr(results, "RESULTS_DIR", tmp_path)
    monkeypatch.setattr(program, "benchmark_broker", no_broker)
    monkeypatch.setattr(machine, "versions", lambda *_, **__: {})
    monkeypatch.setattr(
        throughput.ThroughputSuite, "rows", lambda suite: [rows_of(suite.selection.size.pairs)]
    )
    return results.results_path("throughput")


@pytest.mark.parametrize(
    ("arguments", "full"),
    [
        ([], True),
        (["--pairs", "7", "--jobs", "count_by_key"], True),
        (["--pairs", str(FULL.pairs)], True),
        (["--pairs", "4"], False),
        (["--threads", "2"], False),
        (["--systems", "tidewheel"], False),
        (["--records", "5000"], False),
        (["--quick", "--pairs", "7"], False),
        (["--pairs", "1", "--keep"], True),
    ],
)
def test_rows_of_a_full_run_are_kept(kept: Path, arguments: list[str], full: bool) -> None:
    assert program.main(["throughput", *arguments]) == 0
    assert kept.exists() == full


def test_rows_of_fewer_runs_name_the_rows_they_replace(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--pairs", "1", "--keep"], ["--pairs", "3", "--keep"]):
        assert program.main(["throughput", *more]) == 0
    text = capsys.readouterr().out
    assert text.count("replaces rows") == 1
    assert f"tidewheel: replaces rows of {FULL.pairs} runs by 1" in text
    found = results.load(kept)
    assert found is not None
    assert [row.runs for row in found.rows] == [3]


def test_a_broker_lost_during_the_run_is_named(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut_off(_suite: object) -> Iterator[list[results.Row]]:
        yield rows_of(1)
        raise KafkaException("gone")

    monkeypatch.setattr(throughput.ThroughputSuite, "rows", cut_off)
    arguments = ["throughput", "--keep", "--bootstrap-servers", "broker.test:9092"]
    assert program.main(arguments) == 1
    assert "the broker at broker.test:9092 failed" in capsys.readouterr().out
    assert kept.exists()


@pytest.mark.parametrize("text", ["<!-- benchmarks:throughput -->\n", "\xff"])
def test_a_document_that_cannot_be_filled_is_reported_with_its_reason(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "README.md"
    document.write_bytes(text.encode("latin-1"))
    assert program.main(["table", "--document", str(document)]) == 1
    assert str(document) in capsys.readouterr().out.replace("\n", "")


def test_a_document_without_markers_is_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "README.md"
    document.write_text("nothing here\n")
    assert program.main(["table", "--document", str(document)]) == 1
    assert document.read_text() == "nothing here\n"
    assert "<!-- benchmarks:throughput -->" in " ".join(capsys.readouterr().out.split())


def test_a_latency_run_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(["latency", "--systems", "quix", "--caches", "10MiB"], capsys)
    assert "nothing is left to run: quix runs with --caches 0 only" in text
