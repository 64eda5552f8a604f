"""Who may call the console, from where, and the requests that it refuses."""

from __future__ import annotations

import pytest

from tests.support.console_cluster import HOST, ORIGIN, Browser, FakeCluster, console, values_named
from trovemq_console.sessions import LIFETIME_SECONDS, Sessions
from trovemq_console.settings import ConsoleSettings

SEND = {"topic": "orders", "body": "hello", "keys": "k1", "confirmed": "yes"}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8090", "127.0.0.1", "127.0.0.1:8091", ""])
def test_a_name_that_is_not_the_consoles_is_refused(host: str) -> None:
    with console() as browser:
        assert browser.http.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", [HOST, "localhost:8090", "LOCALHOST:8090", "[::1]:8090"])
def test_every_name_of_loopback_is_served(host: str) -> None:
    with console() as browser:
        assert browser.http.get("/healthz", headers={"host": host}).status_code == 200


def test_given_host_names_are_served_without_the_default_port() -> None:
    settings = ConsoleSettings("b:1", "10.0.0.1", 443, tls=("c", "k"), host_names=("console.example",))  # type: ignore[arg-type]
    assert settings.allowed_hosts() == {
        *("10.0.0.1:443", "10.0.0.1"),
        *("console.example:443", "console.example"),
    }


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(method: str) -> None:
    with console() as browser:
        assert browser.http.request(method, "/").status_code == 405


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:8091", "https://127.0.0.1:8090"]
)
def test_a_form_of_another_site_does_nothing(origin: str) -> None:
    with console(allow_changes=True) as browser:
        fields = {**SEND, "token": browser.form_token()}
        assert browser.post("/acts/send", fields, origin)[0] == 403
        assert not sent(browser)


def test_a_form_that_another_site_made_the_browser_send_does_nothing() -> None:
    with console(allow_changes=True) as browser:
        fields = {**SEND, "token": browser.form_token()}
        headers = {"sec-fetch-site": "cross-site"}
        assert browser.http.post("/acts/send", data=fields, headers=headers).status_code == 403
        assert not sent(browser)


@pytest.mark.parametrize("token", ["", "0" * 64, "é"])
def test_a_form_without_the_sessions_token_does_nothing(token: str) -> None:
    with console(allow_changes=True) as browser:
        browser.form_token()
        status, page = browser.post("/acts/send", {**SEND, "token": token})
        assert status == 403
        assert "Go back, load it again" in page
        assert not sent(browser)


def test_the_token_of_another_browser_is_none() -> None:
    with console(allow_changes=True) as browser:
        token = browser.form_token()
        browser.http.cookies.clear()
        assert browser.post("/acts/send", {**SEND, "token": token})[0] == 403
        assert not sent(browser)


def test_an_expired_session_says_so_and_a_new_page_works() -> None:
    with console(allow_changes=True) as browser:
        token = browser.form_token()
        browser.clocks.passed += LIFETIME_SECONDS + 1
        status, page = browser.post("/acts/send", {**SEND, "token": token})
        assert (status, "its session has expired" in page) == (403, True)
        assert browser.post("/acts/send", {**SEND, "token": browser.form_token()})[0] == 200
        assert sent(browser)


@pytest.mark.parametrize("name", ["send", "reset", "resend", "recall"])
def test_a_read_only_console_changes_nothing(name: str) -> None:
    cluster = FakeCluster(topics={"orders": 2})
    with console(cluster) as browser:
        assert values_named(browser.get("/topic", name="orders"), "token") == []
        status, page = browser.post(f"/acts/{name}", SEND)
        assert (status, "--allow-changes" in page) == (403, True)
        assert not sent(browser)


@pytest.mark.parametrize("cookie", ["", "a", "a.b", "a.1.1.mac", "." * 300, "é.9.1.x"])
def test_a_cookie_that_is_not_ours_begins_a_new_session(cookie: str) -> None:
    sessions = Sessions(b"key", lambda: 0.0)
    assert sessions.read(cookie) is None


def test_a_changed_cookie_is_not_ours() -> None:
    sessions = Sessions(b"key", lambda: 0.0)
    session = sessions.begin()
    assert sessions.read(sessions.cookie(session)) == session
    assert sessions.read(sessions.cookie(session).replace(".0.", ".1.")) is None
    assert Sessions(b"other", lambda: 0.0).read(sessions.cookie(session)) is None


# --- signing in -------------------------------------------------------------------------------------
def test_whoever_is_asked_to_sign_in_sees_nothing_before() -> None:
    with console(sign_in_token="secret") as browser:
        for path in ("/", "/topics", "/message?id=1", "/nosuch"):
            reply = browser.http.get(path)
            assert (reply.status_code, reply.headers["location"]) == (303, "/sign-in")
        assert browser.http.post("/acts/send", data=SEND).status_code == 303
        page = browser.get("/sign-in")
        assert "127.0.0.1:9" not in page
        assert not browser.cluster.calls


def test_the_token_of_the_printed_address_signs_in() -> None:
    with console(sign_in_token="secret") as browser:
        reply = browser.http.get("/sign-in", params={"token": "secret"})
        assert (reply.status_code, reply.headers["location"]) == (303, "/")
        assert "HttpOnly; SameSite=Lax" in reply.headers["set-cookie"]
        assert "Overview" in browser.get("/")


def test_a_wrong_token_does_not_sign_in() -> None:
    with console(sign_in_token="secret") as browser:
        for wrong in ("secre", "é", "secret2"):
            status, page = browser.post("/sign-in", {"sign-in-token": wrong})
            assert (status, "That is not the token" in page) == (403, True)
        assert browser.status("/") == 303
        assert browser.post("/sign-in", {"sign-in-token": "secret"})[0] == 303
        assert browser.status("/") == 200


def test_the_cookie_goes_over_https_alone_where_there_is_https() -> None:
    with console(tls=("certificate", "key")) as browser:
        cookie = browser.http.get("/healthz", headers={"origin": ORIGIN}).headers["set-cookie"]
    assert cookie.endswith("; Secure")


def sent(browser: Browser) -> bool:
    return any(name == "send" for name, _ in browser.cluster.calls)
