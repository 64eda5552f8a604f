"""Planted faults of the cluster's configuration (cluster_config/): the walks find all but three, which need
rare steps. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

PACKAGE: Final = "broker/trovemq_broker/cluster_config/"
WALK: Final = "tests/unit/cluster_config/test_config_walks.py::test_a_walk_loses_no_acknowledged_change[0]"
REFUSALS: Final = "tests/unit/cluster_config/test_config_refusals.py::"
LOGGED: Final = "tests/unit/cluster_config/test_logged_table.py::"
COMMITS: Final = "tests/unit/cluster_config/test_logged_commits.py::"
STORE: Final = "broker/trovemq_broker/cluster/config_store.py"

CLUSTER_CONFIG_FAULTS: Final = (
    Planted(
        "the owner acknowledges a change that no other live broker holds",
        f"{PACKAGE}owner.py",
        "self.head.version if alone else held)",
        "self.head.version)",
        (WALK,),
    ),
    Planted(
        "the owner applies a change to its tables before it is acknowledged",
        f"{PACKAGE}owner.py",
        "if entry.version.version <= self.acknowledged)",
        "if entry.version.version)",
        (WALK,),
    ),
    Planted(
        "the owner forgets deletions that a member has not stored",
        f"{PACKAGE}owner.py",
        "        horizon = min([self._applied, *(self._version_of(name) for name in members)])",
        "        horizon = self._applied",
        (WALK,),
    ),
    Planted(
        "a broker that was away longer than deletions are kept gets the changes since",
        f"{PACKAGE}owner.py",
        " and follower.sent.version >= self.head.horizon:",
        ":",
        (f"{REFUSALS}test_a_broker_away_for_longer_than_deletions_are_kept_gets_everything",),
    ),
    Planted(
        "a broker that has promised a later generation obeys an older owner",
        f"{PACKAGE}follower.py",
        "        if head.generation < self._stored.promised:",
        "        if False:",
        (f"{REFUSALS}test_a_follower_that_has_promised_does_not_obey_the_older_owner",),
    ),
    Planted(
        "a gap between updates is not noticed",
        f"{PACKAGE}follower.py",
        "        if base is not None and base != own.position:",
        "        if False:",
        (f"{REFUSALS}test_an_update_after_a_lost_one_is_refused",),
    ),
    Planted(
        "changes that a take-over drops are gone silently",
        f"{PACKAGE}table.py",
        "    if update.base is not None:\n        return ()\n    if update",
        "    if True:\n        return ()\n    if update",
        (WALK,),
    ),
    Planted(
        "a broker that joins serves before it has the table",
        f"{PACKAGE}follower.py",
        "            return Serving.JOINING",
        "            return Serving.STORED",
        (WALK,),
    ),
    Planted(
        "a broker that returns does not wait for the owner",
        f"{PACKAGE}follower.py",
        "or now_ms >= self._serves_from_ms:",
        "or True:",
        (WALK,),
    ),
    Planted(
        "a promise is forgotten by a restart",
        f"{PACKAGE}stored.py",
        '        if "promised" in body:',
        '        if "promised" in body and "format" in body:',
        (WALK,),
    ),
    Planted(
        "a change that was not stored counts",
        f"{PACKAGE}stored.py",
        "        if work.saved:",
        "        if True:",
        (
            "tests/unit/cluster_config/test_config_table_file.py::"
            "test_a_refused_write_changes_nothing_and_the_next_one_counts[1-write]",
        ),
    ),
    Planted(
        "the take-over continues with the lowest copy",
        f"{PACKAGE}take_over.py",
        "    best = max(usable,",
        "    best = min(usable,",
        (WALK,),
    ),
    Planted(
        "a take-over does not note where the generation before it ended",
        f"{PACKAGE}table.py",
        "(*self.history, self.position)[-HISTORY_MAX:]",
        "self.history",
        (WALK,),
    ),
    Planted(
        "the older of the two copies of the table is read",
        f"{PACKAGE}table_file.py",
        "        best = max(copies,",
        "        best = min(copies,",
        ("tests/unit/cluster_config/test_config_table_file.py::test_the_copy_with_the_later_change_is_read",),
    ),
    Planted(
        "a change is made whatever version its caller has seen",
        f"{PACKAGE}table.py",
        "        if before.version != change.seen:",
        "        if False:",
        (f"{REFUSALS}test_a_change_for_an_older_version_is_a_conflict",),
    ),
    Planted(
        "an entry that is made again keeps the id of the deleted one",
        f"{PACKAGE}table.py",
        "        return self._made(change, position, position, earlier)\n",
        "        old = self.get(change.kind, change.name)\n"
        "        return self._made(change, old.id if old else position, position, earlier)\n",
        (WALK,),
    ),
    Planted(
        "a follower misses the first change since its position",
        f"{PACKAGE}table.py",
        "            if entry.version.version <= version:",
        "            if entry.version.version <= version + 1:",
        (WALK,),
    ),
    Planted(
        "all deletions are forgotten together",
        f"{PACKAGE}table.py",
        "if e.deleted and e.version.version <= horizon]",
        "if e.deleted]",
        (WALK,),
    ),
    Planted(
        "an entry is deleted because the table lacks it",
        f"{PACKAGE}reconcile.py",
        "Action(ActionKind.WITHHOLD, own.key",
        "Action(ActionKind.DELETE, own.key",
        (
            "tests/unit/cluster_config/test_config_reconcile.py::"
            "test_an_entry_that_the_table_lacks_is_reported_and_never_deleted",
        ),
    ),
    Planted(
        "a change is made although its leader ended before the commit",
        STORE,
        "            if waiting.cancelled() or waiting.exception() is not None:",
        "            if False:",
        (
            f"{COMMITS}test_a_leader_that_ends_makes_no_change_any_more",
            f"{COMMITS}test_a_stop_waits_for_no_commit",
        ),
    ),
    Planted(
        "a change is not made because its commit takes long",
        "broker/trovemq_broker/admin/change_saver.py",
        "            if error.spec not in STORED:",
        "            if True:",
        (f"{COMMITS}test_a_commit_that_takes_long_is_waited_for_again",),
    ),
    Planted(
        "the next leader forgets the promised generation",
        f"{PACKAGE}logged.py",
        '            "promised": generation_json(promised),',
        '            "promised": generation_json(head.generation),',
        (f"{LOGGED}test_promise_removal_and_the_stores_id_are_the_groups",),
    ),
    Planted(
        "a change larger than a run of the log is written as one",
        f"{PACKAGE}logged.py",
        "if _is_one_record(changed) and _size_of(changed) <= self._run_size_max:",
        "if _is_one_record(changed):",
        (f"{LOGGED}test_a_change_larger_than_a_run_of_the_log_is_whole_or_not_made",),
    ),
    Planted(
        "an image is the table before its head is there",
        f"{PACKAGE}logged.py",
        "        self._last_image = image = self._last_image + 1",
        "        image = self._image",
        (f"{LOGGED}test_a_change_larger_than_a_run_of_the_log_is_whole_or_not_made",),
    ),
    Planted(
        "half a table in the log passes for a whole one",
        f"{PACKAGE}logged.py",
        '        if len(names) != head["entries"]:',
        "        if False:",
        (f"{LOGGED}test_records_that_an_older_version_has_let_go_are_no_table",),
    ),
    Planted(
        "the table of a file passes for one in the log",
        f"{PACKAGE}logged.py",
        "        self._is_recorded, self._entries.holds_files = False, True",
        "        self._is_recorded, self._entries.holds_files = True, False",
        (f"{LOGGED}test_the_file_of_a_single_broker_becomes_records_when_it_gets_a_group",),
    ),
    Planted(
        "an earlier file undoes the records of the log",
        f"{PACKAGE}logged.py",
        " or rank < own or (self._image and rank == own):",
        ":",
        (f"{LOGGED}test_an_older_file_or_that_of_another_cluster_counts_for_nothing",),
    ),
    Planted(
        "a change of many entries is several records of the log",
        f"{PACKAGE}logged.py",
        "if _is_one_record(changed) and ",
        "if ",
        (f"{LOGGED}test_of_a_change_of_hundreds_of_entries_the_log_kept_some",),
    ),
    Planted(
        "a former leader's file counts for what the log has let go",
        f"{PACKAGE}logged.py",
        "        if not store.tables.lacks_removed(CLUSTER_KIND):",
        "        if True:",
        (f"{LOGGED}test_a_former_leader_that_led_again_had_its_old_table",),
    ),
    Planted(
        "a broker waits for the leader that its setting names",
        "broker/trovemq_broker/cluster/owner_finder.py",
        " and named.address is not None and not is_group:",
        " and named.address is not None:",
        ("tests/unit/cluster_config/test_owner_finder.py::test_a_groups_leader_is_where_the_routes_have_it",),
    ),
)
