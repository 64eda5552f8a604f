"""Planted faults of the tables that are records of the log. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

LOG: Final = "store/trovemq_store/engine/table_log.py"
SAVER: Final = "broker/trovemq_broker/admin/change_saver.py"
ENGINE: Final = "tests/unit/engine/test_table_log.py::"
RETENTION: Final = "tests/unit/engine/test_retention_tables.py::"
CHANGES: Final = "tests/unit/server/test_change_saver.py::"
DELETIONS: Final = "tests/unit/engine/test_deletion_records.py::"
OFFSETS: Final = "tests/unit/engine/test_offset_records.py::"
COMMITS: Final = "tests/unit/consume/test_offset_records.py::"
USERS: Final = "tests/unit/security/test_security_records.py::"
BACKUPS: Final = "tests/unit/backup/test_tables.py::"
GROUPS: Final = "tests/unit/server/test_deleted_groups.py::"

TABLE_FAULTS: Final = (
    Planted(
        "an import's records make a store one that RocketMQ used last",
        "broker/trovemq_broker/state/consumer_state.py",
        "        return tables.are_all_after(PhysicalOffset(log_end))\n",
        "        return False\n",
        (f"{RETENTION}test_an_edited_file_made_the_state_that_of_a_store_of_rocketmqs",),
    ),
    Planted(
        "a blank before an import's records makes a store one that RocketMQ used last",
        LOG,
        "                if begin != end and not self._is_blank(end, begin):\n",
        "                if begin != end:\n",
        (f"{ENGINE}test_records_of_tables_in_the_next_segment_were_those_of_rocketmq",),
    ),
    Planted(
        "a node that follows imports a file",
        LOG,
        "        foreign = file.crc is not None and not self.follows\n",
        "        foreign = file.crc is not None\n",
        (f"{ENGINE}test_on_a_node_that_follows_records_win_over_a_changed_file",),
    ),
    Planted(
        "a table's file wins over the records after it",
        LOG,
        "        for place, record in self._records(end):\n            if apply_record(",
        "        for place, record in self._records(end):\n            if not kind and apply_record(",
        (f"{ENGINE}test_a_power_cut_takes_no_synced_change",),
    ),
    Planted(
        "a log is trimmed without the tables' records",
        "broker/trovemq_broker/maintenance/retention_copies.py",
        "            await self._carry_tables(decision.end)\n",
        "            pass\n",
        (f"{RETENTION}test_the_log_alone_has_the_tables_after_a_removal",),
    ),
    Planted(
        "a log is trimmed while the tables' files lack its changes",
        "broker/trovemq_broker/maintenance/table_files.py",
        "    if tables.lack_below(end):\n        what",
        "    if False:\n        what",
        (f"{RETENTION}test_a_deleted_topic_was_back_where_its_file_was_not_written",),
    ),
    Planted(
        "a table's note is written after its file",
        LOG,
        '        notes.save()\n        fault_point("tables.before_files")\n',
        '        fault_point("tables.before_files")\n',
        (f"{ENGINE}test_a_change_during_a_write_of_the_file_was_undone",),
    ),
    Planted(
        "an imported file is not written",
        LOG,
        "            self._flush()\n            self.write_now()\n        else:\n",
        "            self._flush()\n        else:\n",
        (f"{ENGINE}test_an_imported_file_is_not_imported_twice",),
    ),
    Planted(
        "a foreign file is compared with the table",
        LOG,
        "self._recorded(kind, note.base_end).values",
        "ours.values",
        (f"{ENGINE}test_a_file_changed_after_a_crash_undid_the_last_changes",),
    ),
    Planted(
        "the second copy of a file counts as a foreign file",
        LOG,
        "        if file.is_second_copy and complete:\n",
        "        if False:\n",
        (f"{ENGINE}test_deleted_topics_came_back_from_the_second_copy",),
    ),
    Planted(
        "an import that was interrupted makes the log whole",
        LOG,
        "            return False  # an import was interrupted: the file has the rest\n",
        "            pass\n",
        (f"{ENGINE}test_a_second_copy_whose_import_was_interrupted_was_dropped",),
    ),
    Planted(
        "a log that begins again keeps the files of tables",
        "store/trovemq_store/replica/new_log.py",
        "        for path in (*_TABLES, *_NOTES):\n            files.remove(path)\n",
        "        pass\n",
        (
            "tests/unit/engine/test_table_follow.py::"
            "test_a_topic_deleted_in_skipped_records_was_back_after_a_new_log",
        ),
    ),
    Planted(
        "a deletion under way is undone by a trim",
        LOG,
        "pending.get(name, table.value_of(name))",
        "table.value_of(name)",
        (f"{ENGINE}test_a_deletion_under_way_was_undone_by_a_trim",),
    ),
    Planted(
        "a note covers a change that is not made yet",
        LOG,
        "finished=not pending",
        "finished=True",
        (f"{ENGINE}test_a_creation_under_way_was_lost_by_a_trim",),
    ),
    Planted(
        "a file of a table is ahead of the log",
        "broker/trovemq_broker/maintenance/table_files.py",
        "            await self._durable(work.end)\n            await run_in_thread",
        "            await run_in_thread",
        (f"{CHANGES}test_a_file_is_written_when_the_log_has_its_changes_on_disk",),
    ),
    Planted(
        "the first parts of a change that failed are made before a sync",
        SAVER,
        "        if change.places:\n            await self._made(change.end, finish, late)\n",
        "        if change.places and failure is None:\n"
        "            await self._made(change.end, finish, late)\n",
        (f"{CHANGES}test_topics_before_a_refused_one_were_made_before_a_sync",),
    ),
    Planted(
        "a late change is made while another is under way",
        SAVER,
        "                async with self._changing:\n                    self._note_made()\n"
        "                    finish()\n                    if late is not None:\n"
        "                        await late()\n",
        "                self._note_made()\n                finish()\n",
        (f"{CHANGES}test_a_late_change_waits_until_no_other_is_under_way",),
    ),
    Planted(
        "a change whose wait timed out is forgotten",
        SAVER,
        "            if error.spec not in STORED:\n                raise\n",
        "            raise\n",
        (f"{CHANGES}test_a_topic_whose_wait_timed_out_was_never_there[spec0-FLUSH_DISK_TIMEOUT]",),
    ),
    Planted(
        "a backup copies the files of tables and their notes at two times",
        "store/trovemq_store/backup/writer.py",
        "            if same_notes and topic_journal",
        "            if topic_journal",
        (
            f"{BACKUPS}test_a_backup_whose_file_was_replaced_between_undid_changes"
            "[config/subscriptionGroup.json]",
        ),
    ),
    Planted(
        "a node that follows gets no topic after its start",
        "store/trovemq_store/engine/message_store.py",
        "            self.tables.became_visible(grown)",
        "            pass",
        ("tests/unit/engine/test_table_follow.py::test_a_follower_has_each_committed_change_of_topics",),
    ),
    Planted(
        "a table's file is ahead of the commit",
        "store/trovemq_store/engine/table_log.py",
        "        work = self.begin_write(limit=self._store.commit_limit)\n",
        "        work = self.begin_write()\n",
        ("tests/unit/engine/test_table_follow.py::test_a_topic_that_a_later_leader_cut_was_in_the_file",),
    ),
    Planted(
        "a log that was copied alone has the messages of deleted topics",
        "store/trovemq_store/engine/opening.py",
        "DeletionRecords(self._deletions, self._forget_topic).carry_out\n",
        "None\n",
        (f"{DELETIONS}test_deleted_messages_were_back_in_a_log_that_was_copied_alone",),
    ),
    Planted(
        "a follower keeps the queues of a topic that the leader deleted",
        "store/trovemq_store/engine/message_store.py",
        "self._deletion_records.carry_out if by_record else None",
        "None",
        (f"{DELETIONS}test_a_follower_deletes_when_the_record_is_committed",),
    ),
    Planted(
        "a leader hides messages before the deletion is committed",
        "store/trovemq_store/topics/topic_deletion.py",
        "            if self.by_record:\n",
        "            if False:\n",
        (f"{DELETIONS}test_a_deletion_that_a_later_leader_cut_hid_the_messages",),
    ),
    Planted(
        "a start without the file of deletions reads the last records alone",
        "store/trovemq_store/engine/deletion_records.py",
        "NO_DELETIONS if deletions.is_missing else TopicTable.NOUN",
        "TopicTable.NOUN",
        (f"{DELETIONS}test_a_store_without_its_deletions_has_them_from_the_log[False-lost1-close]",),
    ),
    Planted(
        "files of tables are written without the deletions",
        LOG,
        "            self._save_deletions()\n",
        "            pass\n",
        (f"{DELETIONS}test_a_follower_whose_disk_is_full_deletes_and_saves_later",),
    ),
    Planted(
        "a topic that was made again loses its identity with old records",
        LOG,
        "deleted_below if value is None else self._deleted_below(kind, name)",
        "deleted_below",
        (f"{DELETIONS}test_a_trimmed_log_alone_has_which_topic_of_a_name_it_is",),
    ),
    Planted(
        "a record of a topic that was made again removes its queues",
        "store/trovemq_store/engine/deletion_records.py",
        "                if not one.is_earlier:",
        "                if True:",
        (f"{DELETIONS}test_a_record_appended_again_removes_no_queue",),
    ),
    Planted(
        "the file of offsets wins over their records",
        LOG,
        "            if apply_record(kind, record, place, values, places):\n                version = ",
        "            if kind != OFFSETS_KIND and apply_record(kind, record, place, values, places):\n"
        "                version = ",
        (f"{OFFSETS}test_the_file_of_offsets_won_over_later_records",),
    ),
    Planted(
        "a commit of an offset is answered before its record is on disk",
        "broker/trovemq_broker/fetch/offset_records.py",
        "        await self._durable(await asyncio.shield(self._gathered))\n",
        "        await asyncio.shield(self._gathered)\n",
        (f"{COMMITS}test_the_reply_waits_for_the_record_on_disk",),
    ),
    Planted(
        "offsets of a deleted topic are those of a new one of its name",
        LOG,
        "        return place < deleted_below and (end is None or deleted_below < end)\n",
        "        return False\n",
        (f"{OFFSETS}test_a_topic_that_was_made_again_had_the_offsets_of_the_deleted_one",),
    ),
    Planted(
        "a file of offsets is captured during a topic's deletion",
        LOG,
        "(not offsets or any(self._leaving()))",
        "(not offsets or self._leaving()[1])",
        (f"{OFFSETS}test_a_file_written_during_a_deletion_had_the_deleted_topics_offsets",),
    ),
    Planted(
        "an offset is recorded during its topic's deletion",
        LOG,
        "        if any(self._leaving()):\n            names = ",
        "        if False:\n            names = ",
        (f"{OFFSETS}test_a_topic_made_again_had_an_offset_set_during_its_deletion",),
    ),
    Planted(
        "a log is trimmed without the offsets that deliveries have moved",
        "store/trovemq_store/topics/offsets.py",
        "        found = list(islice(self._without_record, count_max))\n",
        "        found: list[str] = []\n",
        (f"{OFFSETS}test_offsets_are_appended_again_before_their_segment_goes",),
    ),
    Planted(
        "offsets that were lowered are not recorded",
        LOG,
        "            self._append_again(self._offsets, above)\n",
        "            pass\n",
        (f"{OFFSETS}test_offsets_above_the_end_of_an_emptied_log_are_lowered_on_disk",),
    ),
    Planted(
        "offsets that could not be recorded are forgotten",
        LOG,
        "        names = list(offsets.unrecorded)\n",
        "        names = list(offsets.unrecorded)\n        offsets.unrecorded.clear()\n",
        (f"{OFFSETS}test_what_could_not_be_recorded_is_recorded_next",),
    ),
    Planted(
        "a user exists before the record is on disk",
        "broker/trovemq_broker/admin/security_changes.py",
        "        await self.durable(end)\n",
        "        pass\n",
        (f"{USERS}test_a_user_exists_when_the_record_is_on_disk",),
    ),
    Planted(
        "users that cannot be opened replace those of a node that follows",
        "broker/trovemq_broker/security/table.py",
        "            self.failure = error\n",
        "            self.failure = error\n            self._set(SecurityState())\n",
        (f"{USERS}test_users_that_cannot_be_opened_change_nothing",),
    ),
    Planted(
        "a change of users is several records",
        LOG,
        "            for part in in_parts(entries):\n",
        "            for part in ([one] for one in entries):\n",
        (f"{USERS}test_a_change_is_one_record",),
    ),
    Planted(
        "a backup has users at another time than their note",
        "store/trovemq_store/backup/writer.py",
        '    f"{SECURITY_PATH}.bak",\n    SECURITY_PATH,\n)',
        ")",
        (
            f"{BACKUPS}test_a_backup_whose_file_was_replaced_between_undid_changes"
            "[config/trovemq-security.json]",
        ),
    ),
    Planted(
        "a group's deletion leaves its offsets after a crash",
        "store/trovemq_store/topics/table_differences.py",
        "    if kind == OFFSETS_KIND and (group := deleted_group(record)):\n",
        "    if not kind and (group := deleted_group(record)):\n",
        (f"{GROUPS}test_a_group_made_again_after_a_crash_began_at_the_old_offsets",),
    ),
    Planted(
        "a group's deletion leaves its deliveries after a crash",
        "broker/trovemq_broker/state/consumer_state.py",
        "        for _, group in deleted:\n",
        "        for _, group in ():\n",
        (f"{GROUPS}test_a_group_made_again_after_a_crash_began_at_the_old_offsets",),
    ),
    Planted(
        "a node that follows keeps the offsets of a deleted group",
        LOG,
        "            if (group := deleted_group(record)) and place >= self._offsets.log_end:\n",
        "            if (group := deleted_group(record)) and not place:\n",
        (f"{GROUPS}test_a_promoted_node_kept_the_offsets_of_a_deleted_group",),
    ),
    Planted(
        "a file of offsets that is written during a group's deletion has its offsets",
        LOG,
        "            if kind == OFFSETS_KIND and (not offsets or any(self._leaving())):\n",
        "            if kind == OFFSETS_KIND and not offsets:\n",
        (f"{GROUPS}test_what_was_written_during_a_deletion_kept_the_group",),
    ),
    Planted(
        "retention removes a group's deletion while a file has its offsets",
        "store/trovemq_store/topics/offsets.py",
        "            self.log_end = max(self.log_end, end)\n",
        "",
        (f"{GROUPS}test_the_log_lost_the_deletion_before_the_file_lost_the_offsets",),
    ),
    Planted(
        "a start keeps the retry topics of a deletion that a crash interrupted",
        "broker/trovemq_broker/admin/group_changes.py",
        "        for topic in self._retries_of_deleted():\n",
        "        for topic in ():\n",
        (
            f"{GROUPS}test_a_crash_kept_retry_topics_of_a_deleted_group",
            f"{GROUPS}test_a_promoted_node_kept_retry_topics_of_a_deleted_group",
        ),
    ),
    Planted(
        "a start deletes a retry topic that is newer than the deletion of its group",
        "broker/trovemq_broker/admin/group_changes.py",
        "topics.places.get(name, LOG_ORIGIN) < deleted.get(one, LOG_ORIGIN)",
        "one in deleted",
        (f"{GROUPS}test_a_start_keeps_retry_topics_of_other_groups_and_newer_ones",),
    ),
)
