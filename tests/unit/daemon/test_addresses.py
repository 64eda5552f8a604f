"""Addresses as people write them."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.logs import logged
from trovemq_daemon.addresses import (
    Address,
    advertised_address,
    check_advertise,
    check_listen,
    parse_address,
    parse_addresses,
    parse_advertise,
    resolve_ip,
    warn_of_open,
)
from trovemq_daemon.errors import SettingsError


@given(ip=st.ip_addresses(), port=st.integers(0, 65_535))
def test_what_is_written_is_read_back(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    address = Address(str(ip), port)
    assert parse_address(str(address)) == address
    assert address.is_ipv6 == (ip.version == 6)
    assert resolve_ip(address) == address


@given(text=st.text(max_size=30))
def test_any_text_is_an_address_or_a_clear_error(text: str) -> None:
    try:
        address = parse_address(text)
    except SettingsError:
        pass
    else:
        assert 0 <= address.port <= 65_535
        assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "host", ":8081", "host:", "host:x", "host:65536", "host:-1", "::1:8081", "[::1]", "a b:1", "1.2.3:4",
     "host:\uff11"],
)  # fmt: skip
def test_what_is_not_an_address(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_address(text)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1", "LocalHost:1"])
def test_loopback_needs_no_flag(text: str) -> None:
    check_listen("listen", parse_address(text), insecure=False)


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "broker-a:1", "localhost.evil:1"])
def test_anything_else_needs_insecure(text: str) -> None:
    with pytest.raises(SettingsError, match="--insecure"):
        check_listen("listen", parse_address(text), insecure=False)
    check_listen("listen", parse_address(text), insecure=True)


@pytest.mark.parametrize(
    ("advertise", "expected"),
    [
        ("", "127.0.0.1:4711"),
        ("10.0.0.1", "10.0.0.1:4711"),
        ("10.0.0.1:5", "10.0.0.1:5"),
        ("10.0.0.1:0", "10.0.0.1:4711"),
        ("::1", "[::1]:4711"),
        ("[::1]", "[::1]:4711"),
        ("[fe80::1]:5", "[fe80::1]:5"),
        ("broker-a", "broker-a:4711"),
    ],
)
def test_what_is_advertised_after_port_4711_was_bound(advertise: str, expected: str) -> None:
    assert str(advertised_address(Address("127.0.0.1", 4711), advertise)) == expected


def test_every_address_cannot_be_advertised() -> None:
    for listen in ("0.0.0.0:1", "[::]:1"):
        with pytest.raises(SettingsError, match="--advertise"):
            check_advertise(parse_address(listen), "")
        check_advertise(parse_address(listen), "10.0.0.1")
    with pytest.raises(SettingsError, match="cannot be advertised"):
        check_advertise(parse_address("127.0.0.1:1"), "0.0.0.0")


def test_lists_of_addresses_as_ours_and_as_rocketmqs() -> None:
    both = (Address("a", 1), Address("b", 2))
    assert (
        parse_addresses("a:1,b:2") == parse_addresses(" a:1 ; b:2;") == parse_addresses("a:1,b:2,a:1") == both
    )
    assert parse_addresses("") == ()


def test_a_host_name_becomes_an_ip_for_the_records() -> None:
    assert resolve_ip(Address("localhost", 5)).is_loopback
    with pytest.raises(OSError):
        resolve_ip(Address("no-such-host.invalid", 5))
    with pytest.raises(SettingsError, match="not a host name"):
        resolve_ip(Address("x" * 64, 5))
    assert parse_advertise("localhost", 7) == Address("localhost", 7)


def test_nothing_was_logged_of_an_address_that_is_open_to_everybody() -> None:
    with logged() as log:
        warn_of_open({"listen": Address("10.0.0.7", 8081), "tls_listen": Address("::1", 8082), "http": None})
    (line,) = log.getvalue().splitlines()
    assert "access.open" in line
    assert "10.0.0.7:8081" in line


def test_the_refusal_of_an_open_address_named_no_authentication() -> None:
    with pytest.raises(SettingsError, match=r"set authentication_enable .*listen on 127.0.0.1"):
        check_listen(
            "listen", Address("10.0.0.7", 8081), insecure=False, authentication="authentication_enable"
        )
