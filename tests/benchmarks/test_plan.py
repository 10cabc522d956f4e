"""What the throughput suite runs, and what the command line makes of its options."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import results, systems, throughput
from benchmarks.suites import SUITES
from benchmarks.throughput import FULL, QUICK, Selection, settings, source_for, untimed_records


def names(selection: Selection) -> Counter[tuple[str, int, bool, str]]:
    return Counter(
        (each.guarantee, each.commit_interval_ms, each.cache_bytes > 0, system.name)
        for each in settings(selection)
        for system in each.systems
    )


def test_nothing_runs_twice() -> None:
    """Each system runs once in each setting."""
    assert set(names(Selection()).values()) == {1}


def test_common_settings_have_everyone_who_can_run_in_them() -> None:
    """Systems without a cache run only where every update is an output."""
    found = names(Selection())
    for guarantee in ("at_least_once", "exactly_once"):
        for interval_ms in (100, 1_000):
            here = {key[2:] for key in found if key[:2] == (guarantee, interval_ms)}
            assert here == {
                (False, "tidewheel"),
                (False, "tidewheel-workers-2"),
                (False, "kafka-streams"),
                (False, "quix"),
                (False, "raw-client"),
                (True, "tidewheel"),
                (True, "tidewheel-workers-2"),
                (True, "kafka-streams"),
            }


def test_own_defaults_run_where_they_are_not_a_common_interval() -> None:
    """Kafka Streams' 30 s and Quix Streams' 5 s are rows of their own."""
    own = {key for key in names(Selection()) if key[1] not in results.COMMON_INTERVALS_MS}
    assert own == {
        ("at_least_once", 30_000, False, "kafka-streams"),
        ("at_least_once", 30_000, True, "kafka-streams"),
        ("at_least_once", 5_000, False, "quix"),
        ("exactly_once", 5_000, False, "quix"),
    }


def test_quick_leaves_own_defaults_out_and_is_smaller() -> None:
    """The small run has the same shape without the long rows."""
    assert {key[1] for key in names(Selection(size=QUICK))} == {100, 1_000}
    assert QUICK.records < FULL.records
    assert QUICK.pairs == 1


def test_the_full_size_is_the_laid_down_one() -> None:
    """4 M records, the first million not timed; slow peers a quarter of both."""
    setting = next(settings(Selection()))
    ours = source_for(systems.SYSTEMS["tidewheel"], setting, FULL)
    quix = source_for(systems.SYSTEMS["quix"], setting, FULL)
    assert (ours.records, untimed_records(ours)) == (4_000_000, 1_000_000)
    assert (ours.keys, ours.partitions) == (100_000, 4)
    assert (quix.records, untimed_records(quix)) == (1_000_000, 250_000)


def test_every_system_has_its_program_for_every_job() -> None:
    """A job is only offered once each system's side of it is written."""
    peers = systems.PEERS
    for job in throughput.JOBS:
        java = "".join(part.capitalize() for part in job.split("_"))
        for path in (
            peers / "tidewheel" / f"{job}.py",
            peers / "quix" / f"{job}.py",
            peers / "kafka_streams" / f"{java}.java",
            peers / "raw_client" / "consume_produce.py",
        ):
            assert path.is_file(), path


def test_without_arguments_the_suites_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Every suite is shown, also those that come later."""
    assert program.main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in SUITES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "the suites are throughput"),
        (["latency"], "not built yet"),
        (
            ["throughput", "--systems", "flink"],
            "choose from tidewheel, tidewheel-workers-2, kafka-streams",
        ),
        (["throughput", "--jobs", ""], "choose from count_by_key"),
        (["throughput", "--guarantees", "never"], "choose from at_least_once"),
        (["throughput", "--commit-intervals", "often"], "give milliseconds"),
        (["throughput", "--pairs", "0"], "at least 1"),
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
