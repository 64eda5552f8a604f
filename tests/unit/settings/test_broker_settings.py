"""The broker's settings: RocketMQ's names and files, our bounds, the command line."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import run
from trovemq_broker.atomic.limits import AtomicLimits
from trovemq_broker.cluster.registration import RegistrationSettings
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.daemon import settings as settings_module
from trovemq_broker.daemon.rocketmq_keys import IGNORED_KEYS
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.produce.append import AppendSettings
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.settings import Loaded, load_settings, settings_of
from trovemq_store.log.retention import RetentionPolicy
from trovemq_store.settings import StoreSettings

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = sorted((ROOT / "tests" / "golden").glob("*.manifest.json.gz"))


def load(*assignments: str, config: Path | None = None, **flags: str) -> Loaded[BrokerSettings]:
    return load_settings(
        BrokerSettings,
        environment_prefix="TROVEMQ_BROKER",
        environment={},
        config=config,
        assignments=assignments,
        flags=flags,
        ignored_keys=IGNORED_KEYS,
    )


def test_defaults_are_the_engines_and_the_designs() -> None:
    settings = load().settings
    made = settings.store_settings(settings.advertised(Address("127.0.0.1", 8081)))
    assert made == StoreSettings(tree_index_enable=True, tables_in_log=True), (
        "the engine alone does without trees, and with tables in files"
    )
    assert (settings.listen, settings.http, settings.store) == ("127.0.0.1:8081", "127.0.0.1:8080", "./data")
    assert settings.auto_create_topic_enable is False


def test_every_default_is_a_value_that_one_could_give() -> None:
    for name, known in settings_of(BrokerSettings).items():
        if name not in ("listen", "http"):
            text = ",".join(known.default) if isinstance(known.default, tuple) else str(known.default)
            assert known.parse(text) == known.default, name
        assert known.what.endswith("."), name


@pytest.mark.parametrize(
    ("key", "text", "name", "value"),
    [
        ("messageIndexEnable", "false", "message_index_enable", False),
        ("messageIndexSafe", "true", "message_index_safe", True),
        ("maxHashSlotNum", "100", "index_slot_count", 100),
        ("maxIndexNum", "400", "index_item_count", 400),
        ("maxMsgsNumBatch", "7", "query_messages_max", 7),
        ("mappedFileSizeCommitLog", "65536", "commit_log_file_size", 65_536),
        ("mapedFileSizeCommitLog", "65536", "commit_log_file_size", 65_536),
        ("mappedFileSizeConsumeQueue", "1000", "consume_queue_file_size", 1_000),
        ("mappedFileSizeConsumeQueue", "1001", "consume_queue_file_size", 1_020),
        ("flushDiskType", "SYNC_FLUSH", "flush_mode", "sync"),
        ("flushDiskType", "async_flush", "flush_mode", "async"),
        ("autoCreateTopicEnable", "true", "auto_create_topic_enable", True),
        ("defaultTopicQueueNums", "4", "auto_create_queue_count", 4),
        ("maxMessageSize", "1024", "body_size_max", 1_024),
        ("flushIntervalCommitLog", "100", "flush_interval_ms", 100),
        ("flushCommitLogLeastPages", "0", "flush_least_pages", 0),
        ("flushCommitLogThoroughInterval", "9000", "flush_thorough_interval_ms", 9_000),
        ("syncFlushTimeout", "50", "sync_flush_timeout_ms", 50),
        ("enabledAppendPropCRC", "false", "append_property_crc", False),
        ("osPageCacheBusyTimeOutMills", "20", "append_wait_max_ms", 20),
        ("flushConsumerOffsetInterval", "100", "consumer_offset_flush_interval_ms", 100),
        ("flushConsumeQueueThoroughInterval", "100", "many_queues_flush_interval_ms", 100),
        ("flushIntervalConsumeQueue", "100", "projection_flush_interval_ms", 100),
        ("autoCreateSubscriptionGroup", "false", "auto_create_group", False),
        ("accessMessageInMemoryMaxRatio", "25", "recent_memory_percent", 25),
        ("popInflightMessageThreshold", "7", "in_flight_max", 7),
        ("grpcClientConsumerLongPollingBatchSize", "16", "receive_count_max", 16),
        ("maxPopPollingSize", "100000", "receive_polls_max", 100_000),
        ("grpcClientConsumerMinLongPollingTimeoutMillis", "100", "receive_poll_min_ms", 100),
        ("minInvisibleTimeMillsForRecv", "500", "invisible_min_ms", 500),
        ("maxInvisibleTimeMills", "60000", "invisible_max_ms", 60_000),
        ("defaultInvisibleTimeMills", "30000", "renewed_lease_ms", 30_000),
        ("renewMaxTimeMillis", "3600000", "renewed_total_max_ms", 3_600_000),
        ("invisibleTimeMillisWhenClear", "0", "released_after_ms", 0),
        ("timerMaxDelaySec", "259200", "delivery_delay_max_ms", 259_200_000),
        ("transactionTimeOut", "6000", "transaction_timeout_ms", 6_000),
        ("transactionCheckInterval", "1000", "transaction_check_interval_ms", 1_000),
        ("transactionCheckMax", "5", "transaction_check_max", 5),
        ("channelExpiredTimeout", "60000", "client_expiry_ms", 60_000),
        ("grpcMaxInboundMessageSize", "70000", "grpc_receive_size_max", 70_000),
        ("tlsCertPath", "/x.crt", "tls_certificate", "/x.crt"),
        ("tlsKeyPath", "/x.key", "tls_key", "/x.key"),
        ("brokerName", "b", "name", "b"),
        ("brokerClusterName", "c", "cluster", "c"),
        ("brokerIP1", "::1", "advertise", "::1"),
        ("listenPort", "10911", "listen", "127.0.0.1:10911"),
        ("namesrvAddr", "a:1;b:2", "nameserver", ("a:1", "b:2")),
        ("storePathRootDir", "/x", "store", "/x"),
        ("fileReservedTime", "48", "reserved_time_ms", 172_800_000),
        ("deleteWhen", "04;16", "delete_when", "04;16"),
        ("cleanResourceInterval", "5000", "clean_interval_ms", 5_000),
        ("diskMaxUsedSpaceRatio", "99", "disk_used_percent_max", 95),
        ("diskSpaceCleanForciblyRatio", "99", "disk_forcible_percent", 85),
        ("diskSpaceWarningLevelRatio", "20", "disk_warning_percent", 35),
        ("cleanFileForciblyEnable", "false", "clean_forcibly_enable", False),
        ("deleteFileBatchMax", "3", "delete_files_max", 3),
    ],
)
def test_rocketmqs_names(key: str, text: str, name: str, value: Any) -> None:
    tls = {"tlsCertPath": ["tls_key=k"], "tlsKeyPath": ["tls_certificate=c"]}.get(key, [])
    more = [*tls, "tls_listen=127.0.0.1:0"] if tls else []
    assert getattr(load(f"{key}={text}", *more).settings, name) == value


def test_no_key_is_both_implemented_and_ignored() -> None:
    aliases = {alias for known in settings_of(BrokerSettings).values() for alias in known.rocketmq}
    assert not aliases & IGNORED_KEYS
    assert len(aliases) == len([a for known in settings_of(BrokerSettings).values() for a in known.rocketmq])


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_the_broker_conf_of_every_golden_store_is_accepted(manifest: Path, tmp_path: Path) -> None:
    config = json.loads(gzip.decompress(manifest.read_bytes()))["brokerConfig"]
    path = tmp_path / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    loaded = load(config=path)
    assert loaded.settings.commit_log_file_size == int(config["mappedFileSizeCommitLog"])
    assert loaded.settings.flush_mode == "async"
    made = loaded.settings.store_settings(loaded.settings.advertised(Address("127.0.0.1", 10_911)))
    host = config["brokerIP1"]
    assert made.store_host == (f"[{host}]:10911" if ":" in host else f"{host}:10911")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("listen=0.0.0.0:1", "--insecure"),
        ("http=0.0.0.0:1", "--insecure"),
        ("tls_listen=0.0.0.0:1", "--insecure"),
        ("tls_listen=nowhere", "HOST:PORT"),
        ("tls_mode=permissive", "a port for both"),
        ("tls_certificate=x", "given together"),
        ("tls_key=x", "given together"),
        ("listen=nowhere", "HOST:PORT"),
        ("nameserver=127.0.0.1:0", "port must not be 0"),
        ("nameserver=127.0.0.1", "HOST:PORT"),
        ("name=", "name must have"),
        ("store=", "store must not be empty"),
        ("otlp_endpoint=127.0.0.1:4318", "otlp_endpoint must begin with http:// or https://"),
        ("console_url=console:8090", "console_url must begin with http:// or https://"),
        ("cluster=" + "x" * 128, "cluster must have"),
        ("consume_queue_file_size=1001", "multiple of 20"),
        ("body_size_max=9MiB", "must not exceed batch_size_max"),
        ("commit_log_file_size=100", "at least 4096"),
        ("commit_log_file_size=2GiB", "at most"),
        ("index_item_count=1", "at least 2"),
        ("registration_retry_min_ms=6000", "must not exceed"),
        ("invisible_min_ms=13h", "invisible_min_ms must not exceed invisible_max_ms"),
        ("renewed_lease_ms=4h", "renewed_lease_ms must not exceed renewed_total_max_ms"),
        ("timerMaxDelaySec=3d", "timerMaxDelaySec=3d: must be a whole number of seconds"),
        ("timerMaxDelaySec=400000000", "at most"),
        ("recent_memory_percent=101", "at most 100"),
        ("new_group_start=middle", "must be one of earliest, latest, rocketmq, begin, end"),
        ("flushDiskType=sync", "SYNC_FLUSH or ASYNC_FLUSH"),
        ("listenPort=70000", "port between"),
        ("storePathCommitlog=x", "did you mean storePathCommitLog"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(assignment: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(assignment)


def test_listening_on_every_address_needs_an_advertised_one() -> None:
    with pytest.raises(SettingsError, match="--advertise"):
        load("insecure=true", listen="0.0.0.0:8081")
    settings = load("insecure=true", "brokerIP1=10.1.2.3", listen="0.0.0.0:0").settings
    assert str(settings.advertised(Address("0.0.0.0", 4711))) == "10.1.2.3:4711"


def test_tls_is_off_or_has_an_address_of_its_own() -> None:
    assert load().settings.tls_listen_address is None
    settings = load("tls_certificate=c", "tls_key=k", tls_listen="[::1]:0").settings
    assert settings.tls_listen_address == Address("::1", 0)
    assert load("listen=127.0.0.1:0", "tls_listen=127.0.0.1:0").settings.tls_listen_address is not None
    each_has_a_port = load("listen=127.0.0.1:0", "grpc_transport=grpcio", tls_listen="127.0.0.1:0").settings
    assert not each_has_a_port.shares_port(Address("127.0.0.1", 0))
    with pytest.raises(SettingsError, match="but no tls_listen"):
        load("tls_certificate=c", "tls_key=k")
    open_to_all = load("insecure=true", "tls_listen=0.0.0.0:8443").settings.tls_listen_address
    assert open_to_all == Address("0.0.0.0", 8443)


def test_consumer_defaults_are_the_designs() -> None:
    made = load().settings.consumer_settings()
    assert replace(made, recent_bytes_max=ConsumerSettings().recent_bytes_max) == ConsumerSettings()
    assert made.delivery_delay_max_ms == 365 * 86_400_000


def test_consumer_settings_take_every_field_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "machine_memory_size", lambda: 1_000)
    changed = load(
        "auto_create_group=false", "fifo_group_orderly=false", "new_group_start=end",
        "recent_memory_percent=30", "in_flight_max=2",
        "ordered_window_max=3", "event_interval_ms=4", "receive_count_max=5", "invisible_min_ms=6",
        "invisible_max_ms=7", "renewed_lease_ms=1008", "renewed_total_max_ms=1009", "released_after_ms=10",
        "delivery_delay_max_ms=1011", "timers_max=12", "timer_batch_max=13", "transaction_timeout_ms=14",
        "transaction_check_interval_ms=15", "transaction_check_max=16", "transactions_max=17",
        "mappedFileSizeTimerLog=68", "priority_starvation_max=19", "receive_poll_min_ms=20",
    ).settings  # fmt: skip
    made = changed.consumer_settings()
    default = ConsumerSettings()
    same = [f.name for f in fields(ConsumerSettings) if getattr(made, f.name) == getattr(default, f.name)]
    assert same == ["group_expiry_ms", "receive_polls_max", "timer_stop_dequeue"], "others were given"
    assert made.recent_bytes_max == 300


def test_each_value_of_a_part_comes_from_a_setting() -> None:
    """A name that neither a setting nor the call of part_of() has would silently stay at its default."""
    known = settings_of(BrokerSettings)
    parts = (
        StoreSettings,
        ConsumerSettings,
        FlushSettings,
        RegistrationSettings,
        AppendSettings,
        AtomicLimits,
    )
    unknown = [field.name for part in parts for field in fields(part) if field.name not in known]
    assert unknown == ["store_host", "broker", "tables_in_log", "recent_bytes_max", "gather_max_ms"]


def test_no_two_parts_declare_the_same_setting() -> None:
    """Of two bases with one name, the first would silently give its value to the other, too."""
    declared = [name for part in BrokerSettings.__mro__ for name in inspect.get_annotations(part)]
    assert sorted(declared) == sorted(set(declared))
    assert settings_of(BrokerSettings).keys() <= set(declared)


def test_the_machines_memory_is_known_or_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_module.machine_memory_size() > 1 << 26

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    assert settings_module.machine_memory_size() == 1 << 30


def test_a_request_of_32_of_the_largest_bodies_is_taken() -> None:
    settings = load().settings
    assert settings.grpc_limits().receive_size_max == 32 * settings.body_size_max + (2 << 20)


def test_grpcs_sizes_fit_its_int() -> None:
    limits = load("batch_size_max=1GiB", "pull_bytes_max=1GiB").settings.grpc_limits()
    assert limits.receive_size_max < 1 << 31
    assert limits.send_size_max < 1 << 31


def test_limits_leave_space_for_the_largest_frames() -> None:
    settings = load("batch_size_max=16MiB", "pull_bytes_max=1MiB", "grpc_receive_size_max=64KiB").settings
    limits = settings.grpc_limits()
    assert limits.receive_size_max > settings.batch_size_max
    assert limits.send_size_max > settings.pull_bytes_max + settings.body_size_max
    assert load("http=off").settings.http_address is None


def test_store_settings_take_every_field_from_the_settings() -> None:
    changed = load(
        "commit_log_file_size=65536", "consume_queue_file_size=1000", "index_slot_count=10",
        "index_item_count=20",
        "message_index_enable=false", "message_index_safe=true", "body_size_max=1000", "batch_size_max=5000",
        "append_property_crc=false", "flush_mode=async", "cluster=c", "name=n", "query_messages_max=3",
        "query_page_bytes_max=5000", "undispatched_bytes_max=70000", "spare_segment_enable=false",
        "tree_index_enable=true", "producers_max=5",
    ).settings  # fmt: skip
    made = changed.store_settings(Address("10.0.0.9", 5))
    for field in fields(StoreSettings):
        assert getattr(made, field.name) != field.default, field.name


def run_broker(*arguments: str) -> tuple[int, str, str]:
    """The exit code, standard output and standard error."""
    done = run([sys.executable, "-m", "trovemq_broker", *arguments])
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.slow
def test_print_config_shows_values_and_sources_and_starts_nothing() -> None:
    code, out, _ = run_broker(
        "--print-config", "--set", "flushDiskType=ASYNC_FLUSH", "--listen", "127.0.0.1:0"
    )
    assert code == 0
    rows = dict(line.split(" = ", 1) for line in out.splitlines())
    assert list(rows) == list(settings_of(BrokerSettings))
    assert rows["flush_mode"].split("  # ")[1].startswith("--set flushDiskType")
    assert rows["listen"].startswith('"127.0.0.1:0"')
    assert "# --listen" in rows["listen"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["--nonsense"], ["--set", "x=1"], ["--listen", "0.0.0.0:1"], ["extra"]]
)
def test_usage_errors_have_exit_code_2(arguments: list[str]) -> None:
    code, out, err = run_broker(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


def test_the_retention_policy_is_rocketmqs() -> None:
    assert BrokerSettings().retention_policy() == RetentionPolicy()
    policy = load("deleteWhen=02;14", "disk_forcible_percent=97").settings.retention_policy()
    assert (policy.hours, policy.forcible_percent) == (frozenset({2, 14}), 97), (
        "our own names have no such bounds"
    )


def test_an_hour_that_is_none_is_a_problem() -> None:
    with pytest.raises(SettingsError, match="delete_when '25' is not an hour from 0 to 23"):
        load("deleteWhen=25")
