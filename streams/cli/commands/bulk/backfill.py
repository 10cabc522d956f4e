"""`tidewheel backfill`: computes an application's state over history, before it runs."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from tidewheel.state_stores.bulk_restore.frame_source import FrameSource
from tidewheel.streams.bulk.backfill.command import backfill, check_backfill
from tidewheel.streams.bulk.backfill.computation import BackfillReport, HistoryFrame
from tidewheel.streams.bulk.backfill.plan import BackfillPlan
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.commands.bulk.shared import (
    Flag,
    names_of,
    program_of,
    shown_progress,
    step_printer,
)
from tidewheel.streams.cli.output import print_json, print_table
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.exit_codes import ExitCode

Words = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """Options for records that are older than Kafka's.

    Attributes:
        history: TOPIC=SOURCE: a path or URL of Parquet, CSV, JSON, ..., or the name of a table;
            repeatable. Columns: key, value (or its fields), timestamp; optional: headers,
            partition, offset.
        history_format: parquet, csv, json, delta, ... of every history; default: by the file name
            extension.
        history_select: SQL expression of a column of every history, such as 'id AS key'; repeatable.
        history_until: TOPIC=MS: the time (since the epoch) that divides a history without offsets
            from Kafka's records; repeatable.
        history_order_by: TOPIC=COLUMN,...: orders rows of equal times; repeatable.
    """

    history: Words = ()
    history_format: str | None = None
    history_select: Words = ()
    history_until: Words = ()
    history_order_by: Words = ()

    def frames(self) -> dict[str, HistoryFrame]:
        """Return the history of each topic; raise `ConfigError` for malformed options."""
        sources = _by_topic(self.history, "--history", "s3://lake/orders")
        until = _by_topic(self.history_until, "--history-until", "1795219200000")
        order_by = _by_topic(self.history_order_by, "--history-order-by", "changed_at,id")
        others = sorted({*until, *order_by}.difference(sources))
        if others:
            raise ConfigError(f"there is no --history of {', '.join(others)}; give its SOURCE, too")
        return {
            topic: HistoryFrame(
                FrameSource(
                    source=source, file_format=self.history_format, select=self.history_select
                ),
                until_ms=_milliseconds(until[topic]) if topic in until else None,
                order_by=tuple(order_by[topic].split(",")) if topic in order_by else (),
            )
            for topic, source in sources.items()
        }


def run_backfill(
    app: str,
    /,
    *,
    outputs: str | None = None,
    older: HistoryOptions | None = None,
    begins: Annotated[Words, Parameter(name="--from")] = (),
    until: str = "latest",
    until_of: str | None = None,
    accept: str | None = None,
    work: str | None = None,
    restart: Flag = False,
    dry_run: Flag = False,
    master: str | None = None,
    json: Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Compute an application's state over history with Spark, before its workers start.

    Spark runs the topology over the records of its source topics, writes all stores to their
    changelogs and commits the input offsets: workers continue with exactly the next record. The
    application must be new, or reset. Members that start meanwhile wait. After a crash, run the
    command again: it continues with the first step that is not done.

    Exit codes: 0 done; 9 refused, because the application has run, has members or is held.

    Args:
        app: MODULE:TOPOLOGY, such as app.py:topology.
        outputs: What becomes of the records for output topics: discard; topics, which writes them
            there exactly once; or a new or empty folder or URL for Parquet files.
        older: Records that are older than Kafka's.
        begins: Where a topic begins in Kafka: TOPIC=timestamp:MS or TOPIC=file:PATH; repeatable. Default:
            earliest.
        until: Where to end: latest, timestamp:MS (since the epoch), or file:PATH of JSON {topic:
            {partition: offset}}.
        until_of: Instead of --until: the id of an application, at rest (tidewheel group rest) or
            stopped, whose committed offsets are the end. This application continues there. A
            stopped one must stay stopped; at rest, workers that start again wait.
        accept: What to accept, separated by commas: differences from live workers (wall-clock,
            cache, order); that brokers may delete old results immediately (retention); of a history
            that records may be missing before Kafka's (gap), that rows may be among Kafka's
            (overlap), that rows of one key and time are ordered by value (ties); that topics which
            the application of --until-of does not read end at their last record (cut-at-end).
        work: Folder or URL for intermediate files. Default: next to the snapshots, or in the state
            directory with a Spark on this machine.
        restart: Forget an earlier run that was killed.
        dry_run: Show the plan, what is not exact, and the cost; read no record.
        master: Spark master; default: this machine.
        json: Print JSON lines instead of text.
        settings: Settings.
    """
    topology, config = program_of(app, settings)
    as_json = json
    from_ = _by_topic(begins, "--from", "timestamp:1795219200000")
    history = (older or HistoryOptions()).frames()
    accepted = tuple(names_of(accept, "--accept") or ())
    if dry_run:
        plan = check_backfill(
            topology,
            config,
            outputs=outputs,
            history=history,
            begins=from_,
            until=until,
            until_of=until_of,
            accept=accepted,
        )
        _print_plan(plan, frozenset(accepted), as_json=as_json)
        return ExitCode.OK
    with shown_progress(as_json=json, continues=True) as on_progress:
        report = backfill(
            topology,
            config,
            outputs=outputs,
            history=history,
            begins=from_,
            until=until,
            until_of=until_of,
            accept=accepted,
            work=work,
            restart=restart,
            master=master,
            on_progress=on_progress,
            on_step=step_printer(as_json=as_json),
        )
    _print(report, config.application_id, as_json=as_json)
    return ExitCode.OK


def _by_topic(texts: tuple[str, ...], option: str, example: str) -> dict[str, str]:
    """Parse words of the form TOPIC=TEXT.

    >>> _by_topic(("orders=earliest",), "--from", "latest")
    {'orders': 'earliest'}
    """
    found: dict[str, str] = {}
    for word in texts:
        topic, separator, text = word.partition("=")
        if not separator or not topic or not text:
            raise ConfigError(
                f"{option} {word!r}: write the topic and =, such as {option} orders={example}"
            )
        if topic in found:
            raise ConfigError(f"{option} names {topic} twice; write it once")
        found[topic] = text
    return found


def _milliseconds(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"--history-until {text!r}: write milliseconds since the epoch")
    return int(text)


def _print_plan(plan: BackfillPlan, accepted: frozenset[str], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "application_id": plan.application_id,
                "records": plan.records,
                "ranges": {
                    str(at): [span.first, span.end] for at, span in sorted(plan.ranges.items())
                },
                "passes": [
                    {
                        "subtopology": run.subtopology,
                        "reads": sorted(run.reads),
                        "tasks": len(plan.job.tasks(run)),
                    }
                    for run in plan.job.batch.passes
                ],
                "changelogs": list(plan.changelogs),
                "obstacle": plan.obstacle,
                "differences": [
                    {
                        "reason": each.reason,
                        "node": each.node,
                        "text": each.text,
                        "accepted": each.reason in accepted,
                    }
                    for each in plan.differences
                ],
            }
        )
        return
    rows = list(plan.lines())
    for each in plan.differences:
        state = "accepted" if each.reason in accepted else f"needs --accept {each.reason}"
        rows.append((f"not exact ({state})", f"{each.node}: {each.text}"))
    if plan.obstacle is not None:
        rows.append(("not yet", f"{plan.obstacle}; more records may be read then"))
    print_table(f"Plan of a backfill of {plan.application_id}", ["step", "what"], rows)


def _print(report: BackfillReport, application_id: str, *, as_json: bool) -> None:
    offsets = {str(partition): offset for partition, offset in report.input_offsets.items()}
    if as_json:
        print_json(
            {
                "records": report.records,
                "stores": dict(report.stores),
                "outputs": dict(report.outputs),
                "input_offsets": offsets,
            }
        )
        return
    rows = [("records read, at most", f"{report.records:,}")]
    rows += [(f"rows of store {name}", f"{count:,}") for name, count in report.stores.items()]
    rows += [(f"records for {topic}", f"{count:,}") for topic, count in report.outputs.items()]
    rows += [(f"{partition} continues at", f"{offset:,}") for partition, offset in offsets.items()]
    print_table(f"Application {application_id} is ready to start", ["what", "how much"], rows)
