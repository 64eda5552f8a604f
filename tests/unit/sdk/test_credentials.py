"""Where a client's credentials come from, and that nothing shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

import trovemq
from trovemq_proto.authentication.credentials import Credentials, credentials_text, parse_credentials
from trovemq_proto.errors import TroveError

CANARY = "canary-secret-4"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "credentials"
    path.write_text(f"# of the file\naccess_key = file\nsecret_key={CANARY}=\n", encoding="utf-8")
    path.chmod(0o600)
    return str(path)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TROVEMQ_ACCESS_KEY", "TROVEMQ_SECRET_KEY", "TROVEMQ_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)


def test_arguments_come_first_and_the_environments_file_last(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trovemq.ClientOptions().credentials() is None
    monkeypatch.setenv("TROVEMQ_CREDENTIALS", file)
    assert trovemq.ClientOptions().credentials() == Credentials("file", f"{CANARY}=")
    monkeypatch.setenv("TROVEMQ_ACCESS_KEY", "env")
    monkeypatch.setenv("TROVEMQ_SECRET_KEY", "env-secret")
    assert trovemq.ClientOptions().credentials() == Credentials("env", "env-secret")
    assert trovemq.ClientOptions(credentials_file=file).credentials() == Credentials("file", f"{CANARY}=")
    both = trovemq.ClientOptions(access_key="a", secret_key="b", credentials_file=file)
    assert both.credentials() == Credentials("a", "b")


@pytest.mark.parametrize("options", [{"access_key": "a"}, {"secret_key": CANARY}])
def test_half_of_them_is_an_error_before_anything_is_dialled(options: dict[str, str]) -> None:
    with pytest.raises(TroveError, match="together or not at all") as raised:
        trovemq.connect("127.0.0.1:1", **options)  # type: ignore[arg-type]
    assert CANARY not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "access_key=a",
        f"secret_key={CANARY}",
        f"access_key=a\nsecret_key={CANARY}\nsecret_key={CANARY}",
        f"access_key=a\nsecret_key={CANARY}\nother=1",
        f"access_key=\nsecret_key={CANARY}",
        f"access_key=a\n{CANARY}",
    ],
)
def test_a_file_that_is_wrong_is_not_shown(text: str, tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL") as raised:
        trovemq.ClientOptions(credentials_file=str(path)).credentials()
    assert CANARY not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TroveError, match=r"nowhere \(credentials_file\) cannot be read"):
        trovemq.ClientOptions(credentials_file=str(tmp_path / "nowhere")).credentials()


@pytest.mark.parametrize(("text", "fault"), [(None, "cannot be read: No such file"), ("a", "line 1 is not")])
def test_an_error_of_the_environments_file_did_not_name_the_variable(
    text: str | None, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "of-a-profile-of-last-year"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("TROVEMQ_CREDENTIALS", str(path))
    with pytest.raises(TroveError, match=rf"year \(TROVEMQ_CREDENTIALS\):? {fault}"):
        trovemq.ClientOptions().credentials()


def test_a_file_is_read_as_it_is_written() -> None:
    credentials = Credentials("admin", CANARY)
    assert parse_credentials(credentials_text(credentials)) == credentials


def test_no_repr_shows_a_secret() -> None:
    options = trovemq.ClientOptions(access_key="a", secret_key=CANARY)
    assert CANARY not in repr(options)
    assert CANARY not in repr(options.credentials())
    assert CANARY not in repr(trovemq.UserCredentials("a", CANARY, ()))
