"""`tidewheel bootstrap`: a store's content from files or a table."""

from dataclasses import asdict, dataclass
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from tidewheel.bulk import BootstrapRefused, BootstrapReport, FrameSource
from tidewheel.bulk import bootstrap as load
from tidewheel.streams.bulk.bootstrap.driver import Told
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.commands.bulk import Flag, program_of, shown_progress
from tidewheel.streams.cli.output import print_error, print_json, print_table, wants_json
from tidewheel.streams.exit_codes import ExitCode


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How files are read.

    Attributes:
        schema: Types of columns of CSV and JSON, such as 'id STRING, price DOUBLE'. The others are inferred; CSV columns that
            the key is made of are text.
        infer_schema: Infer the types of all CSV columns as Spark does, also those of the key.
        encoding: The charset of CSV and JSON, such as ISO-8859-1; UTF-8 by default.
        multi_line: A JSON file is one document over several lines.
        time_zone: The zone of times that have none, such as Europe/Berlin; UTC by default.
    """

    schema: str | None = None
    infer_schema: Flag = False
    encoding: str | None = None
    multi_line: Flag = False
    time_zone: str | None = None


def bootstrap(
    store: str,
    /,
    *,
    app: str,
    source: Annotated[str, Parameter(name="--from")],
    input_offsets: str,
    file_format: Annotated[str | None, Parameter(name="--format")] = None,
    select: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    reading: ReadingOptions | None = None,
    order_by: str | None = None,
    replace: Flag = False,
    master: str | None = None,
    json: Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Load a store's content from files or a table, before its application runs.

    Each row of the table becomes a row of the store, written by Spark to its changelog through the store's own serdes. Column
    `key` is the key; `value` is the value, or else all other columns are its fields; `timestamp` is when the row was set.
    Members that are started meanwhile wait. Killed at any point, run it again: nobody works with half a store.

    Exit codes: 0 done; 9 refused, because members are alive, the store has content, or other stores would see input again or
    miss some.

    Args:
        store: The store, as the topology names it.
        app: MODULE:TOPOLOGY, such as app.py:topology.
        source: A path or URL of Parquet, CSV, JSON, ..., or the name of a table.
        input_offsets: Where the application reads on: earliest, latest, timestamp:MS (since the epoch), or file:PATH, which is
            JSON: {topic: {partition: offset}}. What the rows stand for ends there.
        file_format: parquet, csv, json, delta, ...; by default told by the end of the name.
        select: An SQL expression that makes a column, such as 'id AS key'; repeat it. By default all columns as they are.
        reading: How files are read.
        order_by: Of several rows of a key, the one with the largest of this column counts; by default there may be only one.
        replace: Replace the store's content; keys that no row has are deleted.
        master: Spark's master; this machine by default.
        json: Print JSON lines on a terminal too.
        settings: Settings.
    """
    topology, config = program_of(app, settings)
    as_json = wants_json(asked=json)
    try:
        with shown_progress(as_json=json) as on_progress:
            report = load(
                topology,
                config,
                store,
                FrameSource(
                    source=source,
                    file_format=file_format,
                    select=select,
                    **asdict(reading or ReadingOptions()),
                ),
                input_offsets=input_offsets,
                replace=replace,
                order_by=order_by,
                master=master,
                on_progress=on_progress,
                on_step=_lines if as_json else _words,
            )
    except BootstrapRefused as error:
        print_error(str(error))
        return ExitCode.REFUSED
    _print(report, as_json=as_json)
    return ExitCode.OK


def _lines(told: Told) -> None:
    print_json({"step": told.phase, "text": told.text})


def _words(told: Told) -> None:
    Console(stderr=True).print(f"• {told.text}", markup=False, highlight=False)


def _print(report: BootstrapReport, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "store": report.store,
                "rows": report.rows,
                "deleted": report.deleted,
                "left_out": report.left_out,
                "input_offsets": {str(each): at for each, at in report.input_offsets.items()},
                "changelog_end": {str(each): at for each, at in report.changelog_end.items()},
            }
        )
        return
    rows = [("rows written", f"{report.rows:,}")]
    if report.deleted:
        rows.append(("keys deleted", f"{report.deleted:,}"))
    if report.left_out:
        rows.append(("rows without a value, left out", f"{report.left_out:,}"))
    rows += [(f"{each} goes on at", f"{at:,}") for each, at in report.input_offsets.items()]
    print_table(f"Store {report.store} is loaded", ["what", "how much"], rows)
