"""A cluster by addresses or by URL."""

from __future__ import annotations

import pytest

import trovemq
from trovemq._net.servers import parse_server, without_secret
from trovemq.options import ClientOptions
from trovemq_proto.errors import TroveError
from trovemq_proto.tls import TlsOptions


@pytest.mark.parametrize(
    ("server", "addresses"),
    [
        ("127.0.0.1:8081", ("127.0.0.1:8081",)),
        (" a:1, b:2 ,", ("a:1", "b:2")),
        (["a:1", "b:2"], ("a:1", "b:2")),
        ("trovemq://a", ("a:8081",)),
        ("trovemq://user:secret@h1,h2?tls=true", ("h1:9876", "h2:9876")),
        ("trovemq://a:1,b/", ("a:1", "b:9876")),
        ("trovemq://[::1],[::2]:7", ("[::1]:9876", "[::2]:7")),
    ],
)
def test_addresses(server: str | list[str], addresses: tuple[str, ...]) -> None:
    assert parse_server(server).addresses == addresses


def test_options_of_a_url_win() -> None:
    named = parse_server("trovemq://a?call_timeout_ms=2000&send_attempts_max=3")
    options = named.options_over(ClientOptions(call_timeout_ms=1, connect_timeout_ms=7))
    assert (options.call_timeout_ms, options.send_attempts_max, options.connect_timeout_ms) == (2000, 3, 7)


def test_a_url_bears_a_lag() -> None:
    assert parse_server("trovemq://a?max_lag_ms=2000").options_over(None).max_lag_ms == 2_000
    assert parse_server("trovemq://a?replica=true").options_over(None).replica
    assert parse_server("trovemq://a").options_over(ClientOptions(replica=True)).replica
    assert parse_server("trovemq://a?max_lag_ms=0").options_over(ClientOptions(max_lag_ms=5)).max_lag_ms == 0


def test_a_url_switches_polling_off() -> None:
    assert parse_server("trovemq://a?busy_poll_us=0").options_over(None).busy_poll_us == 0
    assert parse_server("a:1").options_over(None) == ClientOptions()


@pytest.mark.parametrize(
    ("query", "tls"),
    [
        ("", None),
        ("?tls=true", True),
        ("?tls=false", False),
        ("?tls_ca=/a%20b.pem", TlsOptions(ca="/a b.pem")),
        (
            "?tls=true&tls_cert=c&tls_key=k&tls_server_name=n",
            TlsOptions(certificate="c", key="k", server_name="n"),
        ),
    ],
)
def test_tls_of_a_url(query: str, tls: bool | TlsOptions | None) -> None:
    named = parse_server(f"trovemq://a{query}")
    assert named.options_over(None).tls == tls
    assert named.options_over(ClientOptions(tls=False)).tls is False


def test_keys_of_a_url_count_where_nothing_else_names_any() -> None:
    url = "trovemq://ann:hunter%402@a?tls=true"
    named = parse_server(url)
    options = named.options_over(None)
    assert (options.access_key, options.secret_key, options.tls) == ("ann", "hunter@2", True)
    other = named.options_over(ClientOptions(access_key="bob", secret_key="s"))
    assert (other.access_key, other.secret_key) == ("bob", "s")
    assert "hunter" not in repr(named) + repr(options) + without_secret(url)
    assert without_secret(url) == "trovemq://ann:***@a?tls=true"
    assert without_secret("127.0.0.1:1") == "127.0.0.1:1"
    assert "ter" not in without_secret("trovemq://ann:hun@ter@a:1"), "an @ that was not written as %40"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("", "no server"),
        ("trovemq://", "no server"),
        ("trovemq://?call_timeout_ms=1", "no server"),
        ("host", "is not HOST:PORT"),
        ("host:65536", "is not HOST:PORT"),
        ("::1", "in brackets"),  # port 443 was dialled
        ("fe80::1%eth0:8081", "in brackets"),
        ("trovemq://::1", "in brackets"),
        ("host:\u0661", "is not HOST:PORT"),
        ("http://host:1", "is not HOST:PORT"),
        ("trovemq://a/path", "is not HOST:PORT"),
        ("trovemq://hunter2@a", "ACCESS_KEY:SECRET_KEY"),
        ("trovemq://:hunter2@a", "ACCESS_KEY:SECRET_KEY"),
        ("trovemq://user:@a", "ACCESS_KEY:SECRET_KEY"),
        ("trovemq://user:hunter2@a:b:c", "is not HOST:PORT"),
        ("trovemq://a?call_timeout_ms=0", "whole number from 1 on"),
        ("trovemq://a?busy_poll_us=-1", "whole number from 0 on"),
        ("trovemq://a?max_lag_ms=soon", "max_lag_ms=soon is not a whole number from 0 on"),
        ("trovemq://a?replica=perhaps", "replica=perhaps is neither true nor false"),
        ("trovemq://a?call_timeout_ms=1.5", "whole number"),
        ("trovemq://a?tls=perhaps", "neither true nor false"),
        ("trovemq://a?colour=red", "no option 'colour'"),
    ],
)
def test_what_names_no_server_is_refused_before_anything_is_dialled(server: str, message: str) -> None:
    with pytest.raises(TroveError, match=message) as refused:
        trovemq.connect(server)
    assert refused.value.symbol == "REQUEST_ILLEGAL"
    assert "hunter2" not in str(refused.value)
