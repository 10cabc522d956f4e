"""Mutants: guarded places of the product, each broken by one textual patch, and their tests."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final


class StaleMutantError(Exception):
    """The file of a mutant has changed: its patch does not apply any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One broken place; `test` is the node id of the test that must catch it."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    test: str

    def patched(self, root: Path) -> str:
        """Return the file's text with the patch; raise `StaleMutantError` if it does not apply."""
        text = (root / self.file).read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise StaleMutantError(
                f"mutant {self.name} can't be made because {self.file} has its old text {count} times, "
                f"not once; write the patch again in {Path(__file__).name}"
            )
        return text.replace(self.old, self.new)


MUTANTS: Final = (
    Mutant(
        name="grant-before-fence",
        rule="tasks of a lost owner are granted after its producers are fenced",
        file="rebalance/leader/membership.py",
        old="        done = record.incarnation in draft.observations.fenced or"
        " record.phase == MemberPhase.FENCED\n",
        new="        done = True\n",
        test="tests/rebalance/runtime/test_runtime.py"
        "::test_a_dead_process_is_fenced_before_its_tasks_move",
    ),
    Mutant(
        name="deposed-leader",
        rule="records of a deposed leader change nothing",
        file="rebalance/protocol/group.py",
        old="    if record.leader_epoch < group.leader_epoch:\n        return group\n",
        new="",
        test="tests/rebalance/protocol/test_group.py::test_H1_a_deposed_leader_changes_nothing",
    ),
    Mutant(
        name="no-lease",
        rule="a worker without a lease processes no input",
        file="tasks/loop/group_orders.py",
        old="self.membership is None or self.membership.lease_left_s() > 0",
        new="True",
        test="tests/tasks/loop/test_moves_that_go_wrong.py"
        "::test_H9_a_worker_without_a_lease_processes_no_records",
    ),
    Mutant(
        name="no-floor",
        rule="the group's log keeps the last offsets of a task, also if its owner is fenced",
        file="rebalance/leader/draft.py",
        old="    return {**floor, **{key: max(",
        new="    return {**{key: max(",
        test="tests/rebalance/leader/test_membership.py"
        "::test_H15_a_fence_keeps_the_last_offsets_of_a_task",
    ),
    Mutant(
        name="apply-before-commit",
        rule="stores get the rows of a transaction after its commit",
        file="tasks/commit/commit_round.py",
        old="        self._write(prepared, self.committer.complete())\n",
        new="        self._write(prepared, {})\n"
        "        self._write(prepared, self.committer.complete())\n",
        test="tests/tasks/loop/test_stream_worker.py::test_an_unknown_outcome_changes_nothing",
    ),
    Mutant(
        name="same-producer",
        rule="after a commit of unknown outcome its producer is not used again",
        file="tasks/commit/committer.py",
        old="        self.producer = self._retry_unanswered(self._make_producer, until_s)\n",
        new="",
        test="tests/tasks/commit/test_committer.py"
        "::test_an_unknown_outcome_that_committed_counts_as_committed",
    ),
    Mutant(
        name="atomic-flush",
        rule="RocksDB flushes rows and positions together",
        file="state_stores/rocksdb/shared_resources.py",
        old="        native.set_atomic_flush(True)\n",
        new="",
        test="tests/state_stores/rocksdb/test_kill.py"
        "::test_no_family_is_behind_its_position_after_a_kill",
    ),
    Mutant(
        name="position-checksum",
        rule="a stored position with a wrong checksum is not used",
        file="state_stores/layout/position.py",
        old="_CHECKSUM.unpack(data[_FORMAT.size :])[0] != zlib.crc32(body) or ",
        new="",
        test="tests/state_stores/layout/test_position.py::test_a_damaged_position_is_no_position",
    ),
    Mutant(
        name="position-beyond-log",
        rule="a stored position beyond the log's end is not used",
        file="state_stores/layout/restore.py",
        old="    if position.offset > log_end:\n",
        new="    if position.offset > log_end + 1:\n",
        test="tests/state_stores/layout/test_restore.py::test_a_doubtful_position_is_not_followed",
    ),
    Mutant(
        name="position-of-another-topic",
        rule="a stored position of a recreated topic is not used",
        file="state_stores/layout/restore.py",
        old="    if position.topic_id != topic_id:\n",
        new="    if not position.topic_id:\n",
        test="tests/state_stores/layout/test_restore.py::test_a_doubtful_position_is_not_followed",
    ),
    Mutant(
        name="snapshot-checksum",
        rule="a snapshot's file with a wrong checksum is not used",
        file="state_stores/bulk_restore/location.py",
        old="        if digest.hexdigest() != run.sha256:\n"
        '            raise SnapshotRefused("its checksum is wrong")\n',
        new="",
        test="tests/state_stores/bulk_restore/test_location.py::test_a_damaged_run_is_refused",
    ),
    Mutant(
        name="snapshot-path",
        rule="a snapshot's manifest names no file outside of its folder",
        file="state_stores/bulk_restore/manifest.py",
        old="run.file.startswith(folder) and _RUN_NAME.fullmatch(name) is not None",
        new="run.file.startswith(folder) and bool(name)",
        test="tests/state_stores/bulk_restore/test_manifest.py"
        "::test_inconsistent_numbers_are_not_written",
    ),
    Mutant(
        name="message-size",
        rule="a message larger than any of ours is rejected unread",
        file="rebalance/protocol/decoding.py",
        old="        if len(data) > self._bytes_max:\n",
        new="        if len(data) > 1_000 * self._bytes_max:\n",
        test="tests/rebalance/protocol/test_decoding.py"
        "::test_an_invalid_message_is_rejected_with_its_field",
    ),
    Mutant(
        name="scram-proof",
        rule="a login verifies that the server knows the password",
        file="streams/kafka/admin/transaction_requests.py",
        old='        if not hmac.compare_digest(base64.b64decode(parts["v"]), self._signature):\n',
        new='        if "v" not in parts:\n',
        test="tests/streams/kafka/admin/test_scram_login.py"
        "::test_a_server_that_does_not_know_the_password_is_refused",
    ),
    Mutant(
        name="dashboard-token",
        rule="the dashboard shows the group to holders of its token only",
        file="streams/web/access_control.py",
        old='        return fits and scheme.lower() == "bearer"\n',
        new='        return bool(fits) or scheme.lower() == "bearer"\n',
        test="tests/streams/dashboard/test_web.py::test_no_group_data_are_sent_without_the_token",
    ),
    Mutant(
        name="dashboard-markup",
        rule="the dashboard's page shows names as text, never as markup",
        file="streams/dashboard/page/elements.js",
        old="if (node.textContent !== text) node.textContent = text;",
        new="if (node.textContent !== text) node.innerHTML = text;",
        test="tests/streams/dashboard/test_browser.py::test_forged_names_are_text_only",
    ),
    Mutant(
        name="readable-files",
        rule="only their user can read files of a store",
        file="state_stores/private_files.py",
        old="FILE_MODE: Final = 0o600\n",
        new="FILE_MODE: Final = 0o644\n",
        test="tests/state_stores/bulk_restore/test_location.py"
        "::test_only_its_user_can_read_files_of_a_directory",
    ),
    Mutant(
        name="sink-skips-nothing",
        rule="rows below the positions that a sink stores are not written again",
        file="tasks/task/sink_writer.py",
        old="            if offsets and offsets[0] < stored:\n",
        new="            if False:\n",
        test="tests/tasks/loop/test_sink_tasks.py::test_every_row_is_written_once_whatever_fails",
    ),
    Mutant(
        name="sink-offsets-ahead",
        rule="offsets are committed after the flush of a sink",
        file="tasks/task/sink_task.py",
        old="        return self.writer.flushed[partition]\n",
        new="        return self.next_offsets[partition]\n",
        test="tests/tasks/loop/test_sink_tasks.py"
        "::test_offsets_are_committed_after_the_flush_and_others_do_not_wait",
    ),
    Mutant(
        name="sink-letter-late",
        rule="a refused row is passed after the commit of its dead letter",
        file="tasks/task/sink_task.py",
        old="            self._letters = _Letters.EMITTED\n",
        new="            self._thread.resume()\n",
        test="tests/tasks/loop/test_sink_tasks.py"
        "::test_letter_of_a_refused_row_is_durable_before_the_flush_that_passes_it",
    ),
    Mutant(
        name="sink-owner",
        rule="a flush of an earlier owner is refused, also before the later owner's first flush",
        file="streams/sinks/postgres_upsert.py",
        old='and next_offset = %s and owner = %s"',
        new='and next_offset = %s and %s is not null"',
        test="tests/streams/sinks/test_postgres_upsert.py"
        "::test_earlier_owner_without_a_later_flush_is_fenced_too",
    ),
    Mutant(
        name="parquet-overwrites",
        rule="of two owners of a position one commits its file",
        file="streams/sinks/parquet_files.py",
        old="            os.link(part, path)\n",
        new="            Path(path).write_bytes(data)\n",
        test="tests/streams/sinks/test_parquet_files.py"
        "::test_later_owner_wins_and_the_earlier_one_adds_no_file",
    ),
    Mutant(
        name="shard-group-without-count",
        rule="the group of a shard names both bounds, so that no other tiling commits to it",
        file="tasks/kafka/internal_topics.py",
        old='else f"{application_id}~{shard}"',
        new='else f"{application_id}~{shard.number}"',
        test="tests/tasks/kafka/test_internal_topics.py"
        "::test_K8_shards_of_two_tilings_never_commit_to_one_group",
    ),
    Mutant(
        name="shard-floor-early",
        rule="the floor is committed once all shards of the partition have committed",
        file="tasks/commit/shard_floor.py",
        old="        if len(known) == len(offsets):\n",
        new="        if known:\n",
        test="tests/tasks/commit/test_shard_floor.py"
        "::test_the_floor_waits_for_all_shards_and_is_the_least_of_their_offsets",
    ),
    Mutant(
        name="shard-purge-by-own-offset",
        rule="repartition topics are purged below the floor, which no shard still needs",
        file="tasks/loop/housekeeping.py",
        old="            at: committed[at].offset\n"
        "            for at in committed\n"
        "            if at.topic in topics and at.shard.is_whole  # a slower shard needs the others\n",
        new="            at.whole: committed[at].offset for at in committed if at.topic in topics\n",
        test="tests/tasks/commit/test_shard_floor.py"
        "::test_a_repartition_topic_is_purged_below_the_floor_only",
    ),
    Mutant(
        name="shard-restore-unfiltered",
        rule="a shard restores its own rows of the common changelog",
        file="tasks/restore/store_restore.py",
        old="        if not shard.is_whole:\n",
        new="        if False:\n",
        test="tests/tasks/task/test_shards.py"
        "::test_K8_shards_together_equal_the_whole_task[counts]",
    ),
    Mutant(
        name="shard-runs-unfiltered",
        rule="sorted runs of a shard have its own rows",
        file="streams/processes/restore_helper/run_making.py",
        old="    if not shard.is_whole:\n",
        new="    if False:\n",
        test="tests/tasks/restore/test_shard_rows.py"
        "::test_a_shard_of_four_writes_less_than_a_third_of_the_rows[0of4-changelog-key_value]",
    ),
    Mutant(
        name="shard-snapshot-unfiltered",
        rule="a shard ingests its own rows of a snapshot",
        file="tasks/restore/shard_rows.py",
        old="    parts = [keep_rows(file, spec, is_own) for file in runs.files]\n",
        new="    parts = [keep_rows(file, spec, lambda _: True) for file in runs.files]\n",
        test="tests/tasks/restore/test_shard_rows.py"
        "::test_a_shard_of_four_writes_less_than_a_third_of_the_rows[0of4-snapshot-key_value]",
    ),
    Mutant(
        name="shard-rows-expire-by-others",
        rule="restored rows of a shard expire by the stream time of its own commit",
        file="tasks/restore/restore_planner.py",
        old="                may_part=not task.task_id.shard.is_whole,\n",
        new="                may_part=False,\n",
        test="tests/tasks/restore/test_shard_rows.py"
        "::test_rows_of_a_slow_shard_do_not_expire_by_the_time_of_a_fast_one",
    ),
    Mutant(
        name="shard-reset-leaves-groups",
        rule="a reset deletes the groups of all shards, also those of a former number",
        file="streams/group/reset.py",
        old="        for group_id in (*plan.shard_groups, plan.application_id):\n",
        new="        for group_id in (plan.application_id,):\n",
        test="tests/streams/group/test_reset.py"
        "::test_K8_after_a_reset_the_application_starts_with_any_number_of_shards",
    ),
    Mutant(
        name="outputs-number-apart",
        rule="an output and the number of outputs are one transaction",
        file="streams/bulk/backfill/output_writer.py",
        old="            offsets=lambda written: {at: CommittedOffset(start + written, order.job)},\n",
        new="",
        test="tests/streams/bulk/backfill/test_output_writer.py"
        "::test_a_kill_at_any_step_loses_and_repeats_nothing",
    ),
    Mutant(
        name="outputs-of-any-job",
        rule="the number of outputs of another backfill does not count",
        file="streams/bulk/backfill/output_writer.py",
        old="    if committed is not None and committed.metadata == order.job:\n",
        new="    if committed is not None:\n",
        test="tests/streams/bulk/backfill/test_output_writer.py"
        "::test_the_number_of_another_job_does_not_count",
    ),
    Mutant(
        name="outputs-of-an-earlier-run",
        rule="after it has fenced others, an attempt writes only if its run is current",
        file="streams/bulk/backfill/output_writer.py",
        old="        if not is_current(ports.group(), EVERY_STORE, order.attempt):\n",
        new="        if ports.group() is None:\n",
        test="tests/streams/bulk/backfill/test_output_writer.py"
        "::test_an_attempt_of_an_earlier_run_writes_nothing_and_counts_nothing",
    ),
    Mutant(
        name="history-doubled",
        rule="a row of history that Kafka still has is left out",
        file="streams/bulk/backfill/history.py",
        old="order[0] >= limits[partition]",
        new="order[0] > limits[partition]",
        test="tests/streams/bulk/backfill/test_history.py"
        "::test_a_dump_and_the_rest_of_the_log_are_the_topic",
    ),
    Mutant(
        name="log-before-the-time",
        rule="a record of the log that history has, by its time, is left out",
        file="streams/bulk/batch/source_segments.py",
        old="if time_ms >= from_ms]",
        new="]",
        test="tests/streams/bulk/backfill/test_history.py"
        "::test_rows_before_a_time_and_the_log_from_then_on_are_the_topic",
    ),
    Mutant(
        name="history-gap",
        rule="a log that may have lost records from the time on is an error",
        file="streams/bulk/backfill/history.py",
        old="if 0 < offsets.first >= splits[at]",
        new="if 0 < offsets.first > splits[at]",
        test="tests/streams/bulk/backfill/test_history.py"
        "::test_a_log_without_records_before_the_time_may_have_lost_later_ones",
    ),
    Mutant(
        name="joint-key-returns",
        rule="a joint batch ends before a key returns to a source whose nodes run no later in it",
        file="tasks/processing/engine/record_batch.py",
        old="ranks[name] <= ranks[before]:",
        new="ranks[name] < ranks[before]:",
        test="tests/tasks/task/test_joint_batches.py"
        "::test_joint_batches_give_the_results_of_single_records",
    ),
    Mutant(
        name="joint-lateness",
        rule="operators that judge lateness get no joint batches, which have one stream time",
        file="tasks/key_ranges/keyed_analysis.py",
        old="        or counted(spec) is not None\n",
        new="",
        test="tests/tasks/key_ranges/test_keyed_analysis.py"
        "::test_other_records_share_no_batch[windows]",
    ),
)
