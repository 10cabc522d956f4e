"""`tidewheel snapshot`: writes an application's state as files for its workers to restore from."""

from tidewheel.state_stores.bulk_restore.manifest import Manifest
from tidewheel.streams.bulk.snapshots import snapshot as make_snapshot
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.commands.bulk.shared import Flag, names_of, program_of, shown_progress
from tidewheel.streams.cli.output import print_json, print_table, text_console
from tidewheel.streams.exit_codes import ExitCode


def snapshot(
    target: str | None = None,
    /,
    *,
    stores: str | None = None,
    to: str | None = None,
    full: Flag = False,
    master: str | None = None,
    json: Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Make a snapshot of an application's stores; the application may run.

    Spark reads their changelogs from the last snapshot on (at first, from the start). Workers with
    the same snapshot_location start new copies from the newest snapshot. After a crash, run it
    again: workers ignore an incomplete snapshot.

    Args:
        target: MODULE:TOPOLOGY, such as app.py:topology; default: the setting topology.
        stores: Only these stores, with commas between; default: all with a changelog.
        to: A directory, or a URL for fsspec; default: the setting snapshot_location.
        full: Read the changelogs from their start and ignore earlier snapshots.
        master: Spark master; default: this machine.
        json: Print JSON lines instead of text.
        settings: Settings.
    """
    topology, config = program_of(target, settings, snapshot_location=to)
    with shown_progress(as_json=json) as on_progress:
        manifest = make_snapshot(
            topology,
            config,
            stores=names_of(stores),
            master=master,
            full=full,
            on_progress=on_progress,
        )
    _print(manifest, as_json=json)
    return ExitCode.OK


def _print(manifest: Manifest, *, as_json: bool) -> None:
    if as_json:
        for store in manifest.stores.values():
            print_json(
                {
                    "store": store.store,
                    "generation": store.generation,
                    "partitions": store.partition_count,
                    "runs": sum(len(part.runs) for part in store.partitions),
                    "rows": sum(part.rows for part in store.partitions),
                    "bytes": sum(part.file_bytes for part in store.partitions),
                    "offsets": {str(part.partition): part.to_offset for part in store.partitions},
                }
            )
        return
    rows = [
        (
            store_snapshot.store,
            str(store_snapshot.generation),
            str(store_snapshot.partition_count),
            f"{sum(part.rows for part in store_snapshot.partitions):,}",
            f"{sum(part.file_bytes for part in store_snapshot.partitions) / 1e6:,.1f} MB",
        )
        for store_snapshot in manifest.stores.values()
    ]
    if rows:
        columns = ["store", "generation", "partitions", "rows", "size"]
        print_table(f"Snapshot of {manifest.application_id}", columns, rows)
    else:
        text_console().print(
            f"{manifest.application_id} has no store with a changelog.", markup=False
        )
