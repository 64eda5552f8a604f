"""Planted faults of the record codec (trovemq_proto/records). See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

RECORD_FAULTS: Final = (
    Planted(
        "a body that inflates beyond the limit is returned",
        "proto/trovemq_proto/records/compression.py",
        "    if len(body) > body_size_max:\n        raise "
        'DamagedError(errors.RECORD_DAMAGED, f"the body inflates',
        '    if False:\n        raise DamagedError(errors.RECORD_DAMAGED, f"the body inflates',
        ("tests/unit/records/test_small_parts.py::test_inflating_is_bounded",),
    ),
    Planted(
        "a compressed body that was cut is whole",
        "proto/trovemq_proto/records/compression.py",
        "    if not inflater.eof and len(body) <= body_size_max:\n        raise "
        'DamagedError(errors.RECORD_DAMAGED, "the compressed body is cut short")\n',
        "",
        ("tests/unit/records/test_small_parts.py::test_broken_zlib_bodies",),
    ),
    Planted(
        "a damaged name switches a record's CRC off",
        "proto/trovemq_proto/records/record_crc.py",
        "    return sum(map(int.__eq__, name, CRC_PROPERTY_PREFIX)) >= ALIKE_MIN",
        "    return False",
        ("tests/unit/records/test_record_crc.py::test_no_flipped_bit_of_a_record_passes",),
    ),
    Planted(
        "the end of the last property block is a name",
        "proto/trovemq_proto/records/property_scan.py",
        "    return _END.join([data[start:end] for start, end in spans]) + _END",
        "    return _END.join([data[start:end] for start, end in spans])",
        ("tests/unit/records/test_agrees_with_reference.py::test_a_last_property_without_an_end_is_indexed",),
    ),
    Planted(
        "the first of two properties of one name counts",
        "proto/trovemq_proto/records/property_scan.py",
        "            is_last = np.append(records[1:] != records[:-1], True)",
        "            is_last = np.append(True, records[1:] != records[:-1])",
        ("tests/unit/records/test_agrees_with_reference.py::test_index_of_few_records_in_each_way[scanned]",),
    ),
    Planted(
        "a born host of the other form is overwritten",
        "proto/trovemq_proto/records/patch.py",
        "    if born_host is not None and len(born_host) == born_size:",
        "    if born_host is not None:",
        ("tests/unit/records/test_validate_patch.py::test_patch_fills_in[plain]",),
    ),
    Planted(
        "a seal that a client wrote stays in its record",
        "proto/trovemq_proto/records/patch.py",
        "    if seal is not None or view[at] & 0x80:",
        "    if seal is not None:",
        (
            "tests/unit/log/test_forged_marks.py::"
            "test_forged_transaction_marks_cut_off_acknowledged_messages[-1]",
        ),
    ),
    Planted(
        "the records of a large batch have no CRC",
        "proto/trovemq_proto/records/patch.py",
        "            if append_property_crc:\n                fill_record_crcs(view, batch)\n",
        "",
        ("tests/unit/records/test_validate_patch.py::test_patch_fills_in[vectorised]",),
    ),
    Planted(
        "a copied record is a part of its transaction",
        "proto/trovemq_proto/records/run_mark.py",
        "(number == 0) != (begin == physical_offset) or begin > physical_offset",
        "begin > physical_offset",
        ("tests/unit/log/test_whole_runs.py::test_a_mark_counts_at_its_own_place_only",),
    ),
    Planted(
        "a mark without its seal counts",
        "proto/trovemq_proto/records/run_mark.py",
        "    if sealed and _prepared_offset(batch.data, row) != seal_of(begin):",
        "    if False:",
        (
            "tests/unit/log/test_forged_marks.py::"
            "test_forged_transaction_marks_cut_off_acknowledged_messages[0]",
        ),
    ),
    Planted(
        "a key with spaces is found by a part of it",
        "proto/trovemq_proto/records/keys.py",
        "    if ends[-1] != len(keys) or any(",
        "    if any(",
        (
            "tests/unit/server/rocketmq/test_keys_with_spaces.py::"
            "test_sizes_that_do_not_fit_the_keys_are_not_believed",
        ),
    ),
    Planted(
        "a priority of 9 is refused",
        "proto/trovemq_proto/records/priorities.py",
        "not 0 <= priority <= PRIORITY_MAX:",
        "not 0 <= priority < PRIORITY_MAX:",
        (
            "tests/unit/server/rocketmq/test_priorities.py::"
            "test_they_are_received_highest_first_with_their_priority[NORMAL-priority]",
        ),
    ),
    Planted(
        "a message that was moved within its call counts as signed",
        "proto/trovemq_proto/authentication/calls.py",
        "            inner.update(pack(number))\n",
        "",
        ("tests/unit/security/test_sessions.py::test_a_messages_trailer_is_the_hmac_that_is_documented",),
    ),
    Planted(
        "a backup's file that another one overwrote is restored",
        "store/trovemq_store/backup/restore.py",
        "    if copied.entry != entry:",
        "    if copied.entry.path != entry.path:",
        ("tests/unit/backup/test_backup.py::test_a_changed_byte",),
    ),
    Planted(
        "a manifest names a file outside of the store",
        "store/trovemq_store/backup/manifest.py",
        'if not plain or parts[0] == "/" or ".." in parts:',
        'if not plain or parts[0] == "/":',
        ("tests/unit/backup/test_backup.py::test_a_manifest_that_leads_out_of_the_store[../outside]",),
    ),
)
