"""`tidewheel state`: the contents of stores, read from the cluster and not from workers."""

import sys
from itertools import chain, islice
from typing import Any

from tidewheel.streams.bulk.columns import converter
from tidewheel.streams.bulk.store_view import StoreSummary, key_bytes, partition_of_key, state_view
from tidewheel.streams.bulk.verify import VerifyReport
from tidewheel.streams.bulk.verify import verify as verify_state
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.commands.bulk.shared import (
    Flag,
    names_of,
    program_of,
    shown_progress,
    target_and,
)
from tidewheel.streams.cli.output import print_error, print_json, print_table, text_console
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.exit_codes import ExitCode


def list_stores(
    target: str | None = None, /, *, json: Flag = False, settings: SettingsOptions | None = None
) -> int:
    """List an application's stores: kind, changelog, newest snapshot.

    Args:
        target: MODULE:TOPOLOGY, such as app.py:topology; default: the setting topology.
        json: Print JSON lines instead of text.
        settings: Settings.
    """
    topology, config = program_of(target, settings)
    with state_view(topology, config) as view:
        summaries = view.summaries()
    if json:
        for summary in summaries:
            print_json(_summary(summary))
        return ExitCode.OK
    rows = [
        tuple("" if item is None else str(item) for item in _summary(summary).values())
        for summary in summaries
    ]
    print_table(f"Stores of {config.application_id}", list(_HEADINGS), rows)
    return ExitCode.OK


_HEADINGS = ("store", "kind", "changelog", "partitions", "offsets", "snapshot", "rows in it")


def _summary(summary: StoreSummary) -> dict[str, Any]:
    snapshot = summary.snapshot
    return {
        "store": summary.store,
        "kind": str(summary.kind),
        "changelog": summary.topic,
        "partitions": summary.partitions,
        "offsets": summary.offsets,
        "snapshot_generation": None if snapshot is None else snapshot.generation,
        "snapshot_rows": None
        if snapshot is None
        else sum(part.rows for part in snapshot.partitions),
    }


def get(
    *names: str,
    partition: int | None = None,
    json: Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Show the row of a key, or its rows: windows, sessions, versions.

    The source is the newest snapshot with the end of the changelog, or the changelog; no worker is
    asked.

    Args:
        names: [MODULE:TOPOLOGY] STORE KEY. The key is text, or JSON such as 7 or {"id": 7}; without
            a program, the setting topology names it.
        partition: The key's partition, for keys that your own partitioner has placed.
        json: Print JSON lines instead of text.
        settings: Settings.
    """
    target, store, key = target_and(names, "STORE", "KEY")
    topology, config = program_of(target, settings)
    with state_view(topology, config) as view, shown_progress(as_json=json) as on_progress:
        bulk_store = view.store(store)
        data = key_bytes(bulk_store, key)
        number = partition_of_key(bulk_store, data) if partition is None else partition
        rows = list(view.rows_of_key(bulk_store, data, number, on_progress))
    if not rows:
        print_error(f"store {store} has no key {key!r} in partition {number}")
        return ExitCode.FAILED
    _print_rows(f"{store}, partition {number}", rows, as_json=json)
    return ExitCode.OK


def scan(
    *names: str,
    partition: int | None = None,
    limit: int = 20,
    json: Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Show rows of a store, ordered by key within each partition.

    Args:
        names: [MODULE:TOPOLOGY] STORE; without a program, the setting topology names it.
        partition: Only this partition; default: one after the other.
        limit: Maximum number of rows.
        json: Print JSON lines instead of text.
        settings: Settings.
    """
    if limit < 1:
        raise ConfigError(f"--limit {limit}: give 1 or more")
    target, store = target_and(names, "STORE")
    topology, config = program_of(target, settings)
    with state_view(topology, config) as view, shown_progress(as_json=json) as on_progress:
        bulk_store = view.store(store)
        numbers = range(bulk_store.partitions) if partition is None else (partition,)
        rows = chain.from_iterable(view.rows(bulk_store, number, on_progress) for number in numbers)
        shown = list(islice(rows, min(limit, sys.maxsize)))
    _print_rows(f"{store}, {len(shown)} rows", shown, as_json=json)
    return ExitCode.OK


def _print_rows(title: str, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json({name: _plain(value) for name, value in row.items()})
        return
    columns = list(rows[0]) if rows else ["key", "value"]
    print_table(title, columns, [tuple(map(_text, row.values())) for row in rows])


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else _text(value)


def _text(value: Any) -> str:
    r"""Format a table cell as text.

    >>> _text(b"plain"), _text(b"\xff"), _text({"id": 7}), _text(None)
    ('plain', '0xff', '{"id":7}', '')
    """
    match value:
        case None:
            return ""
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return f"0x{value.hex()}"
        case _:
            text: str = converter("string")(value)
            return text


def verify(
    target: str | None = None,
    /,
    *,
    stores: str | None = None,
    master: str | None = None,
    json: Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Compare stores with their changelogs by Spark: newest snapshot and this machine's databases.

    Exit code 1: a difference, or a broken snapshot. Databases of running workers are skipped.

    Args:
        target: MODULE:TOPOLOGY, such as app.py:topology; default: the setting topology.
        stores: Only these stores, with commas between; default: all with a changelog.
        master: Spark master; default: this machine.
        json: Print JSON lines instead of text.
        settings: Settings.
    """
    topology, config = program_of(target, settings)
    with shown_progress(as_json=json) as on_progress:
        report = verify_state(
            topology, config, stores=names_of(stores), master=master, on_progress=on_progress
        )
    _print_report(report, as_json=json)
    return ExitCode.OK if report.equal else ExitCode.FAILED


def _print_report(report: VerifyReport, *, as_json: bool) -> None:
    if as_json:
        for copy in report.copies:
            print_json(
                {
                    "store": copy.store,
                    "partition": copy.partition,
                    "copy": copy.copy,
                    "rows": copy.rows,
                    "different": copy.different,
                    "differences": copy.differences,
                }
            )
        for text in report.broken:
            print_json({"broken": text})
        for note in report.notes:
            print_json({"note": note})
        return
    rows = [
        (copy.store, str(copy.partition), copy.copy, f"{copy.rows:,}", f"{copy.different:,}")
        for copy in report.copies
    ]
    print_table(
        f"Compared with the changelogs of {report.application_id}",
        ["store", "partition", "copy", "rows", "differ"],
        rows,
    )
    console = text_console()
    for copy in report.copies:
        for difference in copy.differences:
            console.print(f"{copy.store} {copy.copy}: {difference}", markup=False, highlight=False)
    for text in report.broken:
        console.print(f"broken: {text}", markup=False, highlight=False)
    for note in report.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
