"""Snapshot storage.

<location>/<application id>/<store>/manifests/<generation, 10 digits>-<id>.json
<location>/<application id>/<store>/runs/<partition>/<from>-<to>-<id>.sst

Runs are uploaded first and never changed; their manifest follows under a new name. So readers see a
whole snapshot or none.
"""

import hashlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidewheel.state_stores.bulk_restore.manifest import (
    MANIFEST_BYTES_MAX,
    Run,
    SnapshotRefused,
    StoreSnapshot,
    decode_manifest,
    encode_manifest,
)
from tidewheel.state_stores.bulk_restore.storage import open_storage
from tidewheel.state_stores.errors import StoreCorruptedError
from tidewheel.state_stores.names import check_application_id, check_store_name
from tidewheel.state_stores.private_files import make_private_directory
from tidewheel.state_stores.rocksdb.sorted_files import bounds_of

_log = logging.getLogger(__name__)

_MANIFEST_NAME: Final = re.compile(r"(\d{10})-[0-9a-f]{16}\.json")
#: Name of a run file; its id begins with the creation time (ms, hex).
_RUN_NAME: Final = re.compile(r"\d+-\d+-([0-9a-f]{12})[0-9a-f]{16}\.sst")

_COPY_BYTES: Final = 4 * 1024 * 1024

DAY_MS: Final = 86_400_000
#: Age (ms) at which snapshots are deleted if the newest has another topic id.
_OTHER_TOPICS_MS: Final = 30 * DAY_MS


class SnapshotLocation:
    """Storage of snapshots: a directory or an fsspec URL (`s3://bucket/path`, `hdfs://…`).

    URLs need the extra `[spark]` and fsspec's package for the scheme.

    Raises:
        SnapshotRefused: A package is missing.
    """

    def __init__(self, url: str) -> None:
        self._storage = open_storage(url)
        self._logged: set[str] = set()

    def __repr__(self) -> str:
        return f"SnapshotLocation({self._storage.shown!r})"

    def newest(
        self, application_id: str, store: str, topic_id: bytes | None = None
    ) -> StoreSnapshot | None:
        """Return the newest valid snapshot, or None; log broken and foreign manifests.

        If none is of changelog `topic_id`, return another's: the caller reports why it is unusable.
        Raises OSError.
        """
        newest: StoreSnapshot | None = None
        for name in self._manifests(application_id, store):
            snapshot = self._read(name, application_id, store)
            if snapshot is None:
                continue
            if topic_id is None or snapshot.topic_id == topic_id:
                return snapshot
            newest = newest or snapshot
        return newest

    def _manifests(self, application_id: str, store: str) -> list[str]:
        folder = f"{_folder(application_id, store)}/manifests"
        names = [name for name in self._storage.names(folder) if _MANIFEST_NAME.fullmatch(name)]
        return [f"{folder}/{name}" for name in sorted(names, reverse=True)]

    def _read(self, name: str, application_id: str, store: str) -> StoreSnapshot | None:
        try:
            snapshot = decode_manifest(self._storage.read(name, MANIFEST_BYTES_MAX))
            if (snapshot.application_id, snapshot.store) != (application_id, store):
                raise SnapshotRefused(  # noqa: TRY301 - handled like every other reason
                    f"it is one of store {snapshot.store} of {snapshot.application_id}"
                )
        except FileNotFoundError:  # deleted concurrently because a newer one exists
            return None
        except SnapshotRefused as error:
            if name not in self._logged:
                self._logged.add(name)
                _log.warning(
                    "snapshot manifest %s in %s is not used: %s; an older one or the changelog is used instead, delete "
                    "the file and run `tidewheel snapshot`",
                    name,
                    self._storage.shown,
                    error,
                )
            return None
        return snapshot

    def download(self, run: Run, to_dir: Path) -> Path:
        """Download and check a run; the caller owns the durable file.

        Raises:
            SnapshotRefused: The file is missing, or differs from the manifest.
        """
        make_private_directory(to_dir)
        path = to_dir / f"{run.partition}-{run.file.rpartition('/')[2]}"
        try:
            self._fetch(run, path)
            bounds = bounds_of(path)
        except (SnapshotRefused, StoreCorruptedError) as error:
            path.unlink(missing_ok=True)
            raise SnapshotRefused(
                f"{run.file} in {self._storage.shown} is not used: {error}"
            ) from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        if bounds != (run.first_key, run.last_key):
            path.unlink()
            raise SnapshotRefused(
                f"{run.file} in {self._storage.shown} is not used: it has other keys"
            )
        return path

    def _fetch(self, run: Run, path: Path) -> None:
        free_bytes = shutil.disk_usage(path.parent).free
        if run.file_bytes > free_bytes:
            raise SnapshotRefused(
                f"it has {run.file_bytes} bytes, but the disk of {path.parent} only {free_bytes}"
            )
        digest = hashlib.sha256()
        size = 0
        try:
            source = self._storage.open(run.file)
        except FileNotFoundError as error:
            raise SnapshotRefused("it is gone") from error
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with source, os.fdopen(os.open(path, flags, 0o600), "wb") as target:
            while size <= run.file_bytes and (piece := source.read(_COPY_BYTES)):
                size += len(piece)
                digest.update(piece)
                target.write(piece)
            target.flush()
            # fsync here: an fsync by the ingestion would block all tasks.
            os.fsync(target.fileno())
        if size != run.file_bytes:
            raise SnapshotRefused(f"its size is not {run.file_bytes} bytes")
        if digest.hexdigest() != run.sha256:
            raise SnapshotRefused("its checksum is wrong")

    @staticmethod
    def run_name(application_id: str, store: str, run: Run, *, now_ms: int) -> str:
        folder = f"{_folder(application_id, store)}/runs/{run.partition}"
        return f"{folder}/{run.from_offset}-{run.to_offset}-{now_ms:012x}{secrets.token_hex(8)}.sst"

    def upload(self, local: Path, name: str) -> None:
        self._storage.put(local, name)

    def publish(self, snapshot: StoreSnapshot) -> str:
        """Publish a snapshot whose runs are uploaded; return the manifest's name."""
        data = encode_manifest(snapshot)
        folder = _folder(snapshot.application_id, snapshot.store)
        name = f"{folder}/manifests/{snapshot.generation:010}-{secrets.token_hex(8)}.json"
        self._storage.write(name, data)
        return name

    def delete_unreferenced(
        self,
        application_id: str,
        store: str,
        *,
        now_ms: int,
        keep: int = 2,
        min_age_ms: int = DAY_MS,
    ) -> list[str]:
        """Delete all but the `keep` newest valid manifests, and unreferenced runs; return the names.

        Each changelog keeps its own newest ones; manifests of other changelogs are deleted after 30
        days. Runs younger than `min_age_ms` stay for snapshots in progress. Without a valid
        manifest nothing is deleted.
        """
        assert keep > 0, "a location without manifests has no snapshot"
        retained: list[StoreSnapshot] = []
        deleted: list[str] = []
        for name in self._manifests(application_id, store):
            snapshot = self._read(name, application_id, store)
            if snapshot is not None and _is_retained(snapshot, retained, keep=keep, now_ms=now_ms):
                retained.append(snapshot)
            elif snapshot is not None or len(retained) >= keep:
                deleted.append(name)
        if not retained:
            return []
        referred = {run.file for snapshot in retained for run in snapshot.runs}
        folder = f"{_folder(application_id, store)}/runs"
        for partition in self._storage.names(folder):
            for run in self._storage.names(f"{folder}/{partition}"):
                match = _RUN_NAME.fullmatch(run)
                name = f"{folder}/{partition}/{run}"
                if match and name not in referred and now_ms - int(match[1], 16) >= min_age_ms:
                    deleted.append(name)
        for name in deleted:
            self._storage.delete(name)
        return deleted


def _is_retained(
    snapshot: StoreSnapshot, newer: Sequence[StoreSnapshot], *, keep: int, now_ms: int
) -> bool:
    if sum(other.topic_id == snapshot.topic_id for other in newer) == keep:
        return False
    is_newest = not newer or snapshot.topic_id == newer[0].topic_id
    return is_newest or now_ms - snapshot.created_at_ms < _OTHER_TOPICS_MS


def _folder(application_id: str, store: str) -> str:
    return f"{check_application_id(application_id)}/{check_store_name(store)}"
