"""The words of `trovemq stats` for each counter, in the order in which it shows them."""

from __future__ import annotations

from typing import Final

_TEXT: Final = """
messages_in                        messages stored
messages_out                       messages delivered
bytes_in                           bytes stored
bytes_out                          bytes delivered
redelivered_messages               messages delivered again
ready_messages                     messages not consumed yet, of all groups
inflight_messages                  messages delivered and not acknowledged yet
dead_letters                       dead letters made
dead_letter_failures               dead letters that could not be stored yet
duplicates                         duplicates that were not stored
appends_refused                    sends refused
one_way_refused                    one-way sends refused
appends_waiting                    sends that wait for their sync or copies
receives_waiting                   receives that wait for messages
long_polls                         fetches that wait for messages
timers_pending                     delayed messages that wait
timers_enqueued                    delayed messages stored
timers_dequeued                    delayed messages whose time came
timers_recalled                    delayed messages recalled
timers_dropped                     delayed messages whose topic was gone
timers_lost                        delayed messages that could not be read
timer_behind_ms                    delay of the most overdue message
timer_lateness_max_ms              largest delay of a message beyond its time
half_messages                      open transactions
transactions_committed             transactions committed
transactions_rolled_back           transactions rolled back
transactions_given_up              transactions ended without an answer of their producer
atomic_open                        open atomic transactions
atomic_bytes                       memory of open atomic transactions
atomic_committed                   atomic transactions committed
atomic_repeated                    commits repeated, answered as before
atomic_rolled_back                 atomic transactions rolled back
atomic_timed_out                   atomic transactions that took too long
atomic_refused                     atomic commits refused
atomic_cut                         unfinished transaction cut at the last start
atomic_unfinished                  transactions without all records at the last start
producers_numbered                 idempotent producers
producer_missing                   messages missing before a higher sequence number
producer_filled                    missing messages that came later
topics                             topics
consumer_groups                    groups with an offset
clients                            clients of RocketMQ's protocol
producers                          of these, producers
consumers                          of these, consumers
telemetry_streams                  open streams of these clients
streams                            open streams of sends and fetches
queries_running                    queries that run now
searches                           searches
search_entries                     index entries that searches read
search_scanned_bytes               log that searches read
log_segments                       files of the log
log_min_offset                     first byte of the log
log_end_offset                     end of the log
log_flushed_offset                 end of the log that is on disk
log_visible_offset                 end of the log that can be read
flushes                            syncs of the log
flush_behind_bytes                 log that is not synced yet
flush_timeouts                     acknowledgements before their sync
replica_timeouts                   acknowledgements before enough copies
dispatch_behind_bytes              log that cannot be read yet
restart_read_bytes                 log that a restart reads again
disk_used_percent                  disk used
disk_full                          disk full, sends refused
retention_segments                 log files removed by age or size
retention_bytes                    bytes of the removed log files
retention_forced_segments          log files removed early to free the disk
retention_early_newest_ms          store time of the newest message removed early
retention_early_until_ms           time until which it should have been kept
retention_carried_messages         waiting messages stored again before removal
retention_dropped_messages         waiting messages removed
retention_dropped_unacknowledged   unacknowledged messages removed to free the disk
retention_held_bytes               log kept for unacknowledged messages
retention_failures                 failed removals of log files
damaged_ranges                     damaged places found in the log
damaged_bytes                      damaged bytes found in the log
damaged_messages                   damaged messages that were not delivered
records_not_copied                 records that could not be copied
scrubs                             scrubs completed
scrubbed_bytes                     bytes scrubbed
scrub_damages                      damaged places found by scrubs
backups                            backups made
backup_bytes                       bytes backed up
backup_failures                    failed backups
segment_create_failures            log files that could not be made
index_create_failures              index files that could not be made
lagging_projections                indexes that lack the log's end
projection_failures                failed writes of indexes
tree_records                       records entered into the sorted trees
tree_lag_bytes                     log that the sorted trees lack
tree_bytes                         size of the sorted trees
trees_quarantined                  sorted trees quarantined and rebuilt
unique_ids_waiting                 message ids that the trees lack
events                             changes of consumers' state written
events_pending                     changes of consumers' state that wait
snapshot_failures                  failed snapshots of consumers' state
"""
_ROWS: Final = (line.partition(" ") for line in _TEXT.strip().splitlines())
WORDS: Final = {name: words.strip() for name, _, words in _ROWS}
_PLACES: Final = {name: place for place, name in enumerate(WORDS)}


def counter_words(name: str) -> str:
    """The words for a counter; a newer broker's unknown one is its name."""
    return WORDS.get(name, name.replace("_", " "))


def counter_place(name: str) -> tuple[int, str]:
    """Sorts counters: unknown ones come last, by name."""
    return _PLACES.get(name, len(_PLACES)), name
