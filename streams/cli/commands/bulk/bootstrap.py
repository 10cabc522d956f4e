"""`tidewheel bootstrap`: loads a store from files or a table."""

from dataclasses import asdict, dataclass
from typing import Annotated

from cyclopts import Parameter

from tidewheel.streams.bulk.bootstrap.command import (
    BootstrapReport,
    FrameSource,
)
from tidewheel.streams.bulk.bootstrap.command import bootstrap as load
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.commands.bulk.shared import (
    Flag,
    program_of,
    shown_progress,
    step_printer,
)
from tidewheel.streams.cli.output import print_json, print_table
from tidewheel.streams.exit_codes import ExitCode


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options for reading files.

    Attributes:
        schema: Types of CSV and JSON columns, such as 'id STRING, price DOUBLE'. Other types are
            inferred; CSV columns of the key are text.
        infer_schema: Infer the types of all CSV columns as Spark does, including those of the key.
        encoding: Charset of CSV and JSON, such as ISO-8859-1; default: UTF-8.
        multi_line: Each JSON file is one document over several lines.
        time_zone: Zone of times without one, such as Europe/Berlin; default: UTC.
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

    Each row of the table becomes a row of the store: Spark writes it to the changelog with the
    store's serdes. Column `key` is the key. Column `value` is the value; without it, all other
    columns are its fields. Column `timestamp` is the row's timestamp. Members that start meanwhile
    wait. After a crash, run the command again: no member uses a partly loaded store.

    Exit codes: 0 done; 9 refused, because members are alive, the store has content, or other stores
    would process input twice or miss some.

    Args:
        store: Name of the store in the topology.
        app: MODULE:TOPOLOGY, such as app.py:topology.
        source: A path or URL of Parquet, CSV, JSON, ..., or the name of a table.
        input_offsets: Input position of the loaded state, where the application resumes: earliest,
            latest, timestamp:MS (since the epoch), or file:PATH of JSON {topic: {partition:
            offset}}.
        file_format: parquet, csv, json, delta, ...; default: by the file name extension.
        select: SQL expression of a column, such as 'id AS key'; repeatable. Default: all columns
            unchanged.
        reading: Options for reading files.
        order_by: Of several rows with one key, use the one with the largest value of this column.
            Default: keys must be unique.
        replace: Replace the store's content; keys without a row are deleted.
        master: Spark master; default: this machine.
        json: Print JSON lines instead of text.
        settings: Settings.
    """
    topology, config = program_of(app, settings)
    as_json = json
    with shown_progress(as_json=json, continues=True) as on_progress:
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
            on_step=step_printer(as_json=as_json),
        )
    _print(report, as_json=as_json)
    return ExitCode.OK


def _print(report: BootstrapReport, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "store": report.store,
                "rows": report.rows,
                "deleted": report.deleted,
                "left_out": report.left_out,
                "input_offsets": {
                    str(partition): offset for partition, offset in report.input_offsets.items()
                },
                "changelog_end": {
                    str(partition): offset for partition, offset in report.changelog_end.items()
                },
            }
        )
        return
    rows = [("rows written", f"{report.rows:,}")]
    if report.deleted:
        rows.append(("keys deleted", f"{report.deleted:,}"))
    if report.left_out:
        rows.append(("rows without a value, left out", f"{report.left_out:,}"))
    rows += [
        (f"{partition} resumes at", f"{offset:,}")
        for partition, offset in report.input_offsets.items()
    ]
    print_table(f"Store {report.store} is loaded", ["what", "how much"], rows)
