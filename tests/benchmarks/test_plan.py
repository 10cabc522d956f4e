"""What the throughput suite runs, and what the command line makes of its options."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import results, systems, throughput
from benchmarks.suites import SUITES
from benchmarks.throughput import FULL, QUICK, Selection, inputs_for, settings, untimed_records

COUNTS = Selection(jobs=("count_by_key",))


def names(selection: Selection) -> Counter[tuple[str, int, bool, str]]:
    return Counter(
        (each.guarantee, each.commit_interval_ms, each.cache_bytes > 0, system.name)
        for each in settings(selection)
        for system in each.systems
    )


def test_nothing_runs_twice() -> None:
    """Each system runs once in each setting."""
    assert set(names(COUNTS).values()) == {1}
    runs = [
        (each.job.name, each.guarantee, each.commit_interval_ms, each.cache_bytes)
        for each in settings(Selection())
    ]
    assert len(set(runs)) == len(runs)
    assert {job for job, *_ in runs} == set(throughput.JOBS)


def test_common_settings_have_everyone_who_can_run_in_them() -> None:
    """What has no state runs only where every update is an output; what has no cache stands beside those that have."""
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


def test_a_guarantee_that_a_system_cannot_give_is_no_setting() -> None:
    """Bytewax has no transactions; alone it runs in no setting with exactly_once."""
    alone = replace(COUNTS, systems=("bytewax",))
    assert {key[0] for key in names(alone)} == {"at_least_once"}
    assert not list(settings(replace(alone, guarantees=("exactly_once",))))


def test_quick_leaves_own_defaults_out_and_is_smaller() -> None:
    """The small run has the same shape without the long rows."""
    quick = replace(COUNTS, size=QUICK)
    assert {key[1] for key in names(quick)} == {100, 1_000}
    assert QUICK.records < FULL.records
    assert QUICK.pairs == 1


def test_quick_runs_each_job_in_one_setting() -> None:
    """So that all jobs and systems are through within ten minutes."""
    parser = program._parser()
    selection = program._selection(parser, parser.parse_args(["throughput", "--quick"]))
    assert [each.job.name for each in settings(selection)] == list(throughput.JOBS)
    wider = ["throughput", "--quick", "--guarantees", "at_least_once,exactly_once", "--caches", "0"]
    selection = program._selection(parser, parser.parse_args(wider))
    assert len(list(settings(selection))) == 2 * len(throughput.JOBS)


def test_a_cache_that_changes_nothing_is_no_setting() -> None:
    """Joins and what keeps no state run once; large state runs with a cache that it does not fit in."""
    caches: dict[str, set[int]] = {}
    for each in settings(Selection()):
        caches.setdefault(each.job.name, set()).add(each.cache_bytes >> 20)
    assert caches["stateless_json"] == caches["stream_table_join"] == {0}
    assert caches["count_by_key"] == caches["tumbling_count"] == {0, 64}
    assert caches["count_by_key_large"] == {0, 10}


def test_only_the_count_has_rows_of_own_defaults() -> None:
    """At 30 s a run takes minutes: the other jobs compare what all share."""
    own = {
        each.job.name
        for each in settings(Selection())
        if each.commit_interval_ms not in results.COMMON_INTERVALS_MS
    }
    assert own == {"count_by_key"}


def test_the_full_size_is_the_laid_down_one() -> None:
    """4 M records, the first million not timed; slow peers a quarter of both, and the slowest a twentieth."""
    setting = next(settings(COUNTS))
    (ours,) = inputs_for(systems.SYSTEMS["tidewheel"], setting, FULL)
    (quix,) = inputs_for(systems.SYSTEMS["quix"], setting, FULL)
    assert (ours.records, untimed_records(ours)) == (4_000_000, 1_000_000)
    assert (ours.keys, ours.partitions) == (100_000, 4)
    assert (quix.records, untimed_records(quix)) == (1_000_000, 250_000)
    (faust,) = inputs_for(systems.SYSTEMS["faust"], setting, FULL)
    assert (faust.records, untimed_records(faust)) == (200_000, 50_000)


def test_every_job_has_a_million_records() -> None:
    """For us and for Kafka Streams, rows of a table that are there before not counted."""
    for setting in settings(Selection()):
        inputs = inputs_for(systems.SYSTEMS["kafka-streams"], setting, FULL)
        assert sum(each.records for each in setting.job.work(inputs)) >= 1_000_000


def test_a_system_that_lacks_a_job_does_not_run_in_it() -> None:
    """Quix Streams has no foreign-key join, and the plain client keeps no state."""
    for setting in settings(Selection()):
        running = {system.name for system in setting.systems}
        assert not running & set(setting.job.lacking)
        assert {"tidewheel", "kafka-streams"} <= running or setting.job.own_defaults


def test_without_arguments_the_suites_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Every suite is shown, also those that come later."""
    assert program.main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in SUITES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "the suites are throughput"),
        (["latency", "--systems", "faust"], "choose from tidewheel, kafka-streams, quix"),
        (["memory", "--systems", "quix"], "choose from tidewheel, kafka-streams"),
        (
            ["throughput", "--systems", "flink"],
            "choose from tidewheel, tidewheel-workers-2, tidewheel-workers-4, kafka-streams",
        ),
        (["throughput", "--jobs", ""], "choose from stateless_json, count_by_key"),
        (["throughput", "--caches", "1"], "choose from 0, 10MiB, all"),
        (["throughput", "--guarantees", "never"], "choose from at_least_once"),
        (["throughput", "--commit-intervals", "often"], "give milliseconds"),
        (["throughput", "--pairs", "0"], "at least 1"),
        (["latency", "--quick", "--keep"], "don't stand beside those of full runs"),
    ],
)
def test_a_wrong_option_says_what_is_right(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2 and the message names the choices, before anything is started."""
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_document_without_markers_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says which lines to add."""
    document = tmp_path / "README.md"
    document.write_text("nothing here\n")
    assert program.main(["table", "--document", str(document)]) == 1
    assert document.read_text() == "nothing here\n"
    assert "<!-- benchmarks:throughput -->" in " ".join(capsys.readouterr().out.split())
