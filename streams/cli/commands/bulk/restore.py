"""`tidewheel restore`: restores the task directories of this machine before its workers start."""

from tidewheel.streams.bulk.restore import RestoreReport
from tidewheel.streams.bulk.restore import restore as restore_tasks
from tidewheel.streams.cli.arguments import SettingsOptions, check_workers
from tidewheel.streams.cli.commands.bulk.shared import Flag, names_of, program_of, shown_progress
from tidewheel.streams.cli.output import print_json, print_table, text_console
from tidewheel.streams.exit_codes import ExitCode


def restore(
    target: str | None = None,
    /,
    *,
    stores: str | None = None,
    workers: int = 1,
    master: str | None = None,
    json: Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Restore an application's state on this machine by Spark, before its workers start.

    Spark updates a snapshot to the present (a temporary one without the setting snapshot_location);
    its files become the tasks' databases. Existing databases that can be updated stay. Running
    workers don't need this command: with snapshot_location they restore from snapshots by
    themselves.

    Args:
        target: MODULE:TOPOLOGY, such as app.py:topology; default: the setting topology.
        stores: Only these stores, with commas between; default: all on disk with a changelog.
        workers: Number of workers that will run here; tasks are distributed among them.
        master: Spark master; default: this machine.
        json: Print JSON lines instead of text.
        settings: Settings.
    """
    check_workers(workers)
    topology, config = program_of(target, settings)
    with shown_progress(as_json=json) as on_progress:
        report = restore_tasks(
            topology,
            config,
            stores=names_of(stores),
            master=master,
            slots=workers,
            on_progress=on_progress,
        )
    _print(report, as_json=json)
    return ExitCode.OK


def _print(report: RestoreReport, *, as_json: bool) -> None:
    if as_json:
        for store in report.stores:
            print_json(
                {
                    "task": str(store.task_id),
                    "store": store.store,
                    "slot": store.slot,
                    "rows": store.rows,
                    "bytes": store.file_bytes,
                    "offset": store.offset,
                    "reason": store.reason,
                }
            )
        return
    rows = [
        (
            str(restored.task_id),
            restored.store,
            f"{restored.rows:,}",
            str(restored.offset),
            restored.reason,
        )
        for restored in report.stores
    ]
    if rows:
        columns = ["task", "store", "rows", "resumes at", "from"]
        print_table(f"Restored of {report.application_id}", columns, rows)
    else:
        text_console().print(
            f"{report.application_id} has no store with a changelog on disk.", markup=False
        )
