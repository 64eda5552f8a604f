"""`trovemq cert`: an authority and what it signs; keys for their owner alone; no file is lost unasked."""

from __future__ import annotations

import ssl
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from trovemq_proto.tls import TlsOptions, read_tls


@pytest.fixture
def make(run: Any, tmp_path: Path) -> Callable[..., Any]:
    """Runs `trovemq cert …` in a separate directory."""
    return lambda *arguments: run("--json", "cert", *arguments, "--dir", str(tmp_path / "certs"))


def loaded(path: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(Path(path).read_bytes())


def test_an_authority_signs_a_server_and_a_client(make: Any, tmp_path: Path) -> None:
    (ca,) = make("ca").objects
    (server,) = make("server", "mq.example", "10.1.2.3", "--days", "7").objects
    (client,) = make("client", "billing").objects
    names = loaded(server["certificate"]).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["mq.example"]
    assert [str(one) for one in names.value.get_values_for_type(x509.IPAddress)] == ["10.1.2.3"]
    assert loaded(client["certificate"]).subject.rfc4514_string() == "CN=billing"
    for made in (server, client):
        loaded(made["certificate"]).verify_directly_issued_by(loaded(ca["certificate"]))
        options = TlsOptions(ca=ca["certificate"], certificate=made["certificate"], key=made["key"])
        assert read_tls(options).context().get_ca_certs()
        assert made["sha256"] not in (ca["sha256"], "")
    assert sorted(path.name for path in (tmp_path / "certs").iterdir()) == [
        *("billing.key", "billing.pem", "ca.key", "ca.pem", "server.key", "server.pem")
    ]


def test_strict_verification_takes_them(make: Any) -> None:
    """Python 3.13's default: identifiers of keys must be there."""
    (ca,), (server,) = make("ca").objects, make("server").objects
    client = ssl.create_default_context(cafile=ca["certificate"])
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server["certificate"], server["key"])
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_hostname="localhost"),
        context.wrap_bio(up, down, server_side=True),
    ]
    done: set[int] = set()
    while len(done) < 2:
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
                done.add(number)
            except ssl.SSLWantReadError:
                pass
    assert ends[0].getpeercert()


def test_keys_are_their_owner_s_alone(make: Any) -> None:
    for arguments in (("ca",), ("server",), ("client",)):
        (made,) = make(*arguments).objects
        assert stat.S_IMODE(Path(made["key"]).stat().st_mode) == 0o600
        assert stat.S_IMODE(Path(made["certificate"]).stat().st_mode) == 0o644


def test_nothing_is_overwritten_unasked(make: Any) -> None:
    (first,) = make("ca").objects
    content = Path(first["key"]).read_bytes()
    Path(first["certificate"]).unlink()
    refused = make("ca")
    assert (refused.code, refused.note["error"]) == (1, "TLS_OPTION_ILLEGAL")
    assert "ca.key is there already; --force replaces it" in refused.note["message"]
    assert Path(first["key"]).read_bytes() == content
    assert not Path(first["certificate"]).exists()
    (second,) = make("ca", "--force").objects
    assert Path(second["key"]).read_bytes() != content
    assert stat.S_IMODE(Path(second["key"]).stat().st_mode) == 0o600


def test_without_an_authority_the_error_says_how_to_make_one(make: Any) -> None:
    refused = make("server")
    assert (refused.code, refused.note["error"]) == (1, "TLS_OPTION_ILLEGAL")
    assert "make it with `trovemq cert ca --dir" in refused.note["message"]


def test_an_authority_whose_key_is_another_s_signs_nothing(make: Any, tmp_path: Path) -> None:
    make("ca")
    key = (tmp_path / "certs" / "ca.key").read_bytes()
    make("ca", "--force")
    (tmp_path / "certs" / "ca.key").write_bytes(key)
    assert "cannot sign: the key is not the certificate's" in make("server").note["message"]


@pytest.mark.parametrize(
    "arguments",
    [("client", "ca"), ("client", "../x"), ("client", ""), ("server", "a b"), ("ca", "--days", "0")],
)
def test_names_that_do_not_work_are_wrong_usage(
    make: Any, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    assert make(*arguments).code == 2
    assert not (tmp_path / "certs").exists()


def test_without_the_library_the_error_names_the_extra(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    refused = make("ca")
    assert (refused.code, refused.note["error"]) == (1, "TLS_OPTION_ILLEGAL")
    assert "pip install 'trovemq[tls]'" in refused.note["message"]


def test_people_see_the_files(run: Any, tmp_path: Path) -> None:
    ran = run("cert", "ca", "--dir", str(tmp_path))
    assert ran.code == 0
    assert b"ca.pem" in ran.out


def test_revoked_certificates_stay_on_the_list_when_it_is_renewed(make: Any, tmp_path: Path) -> None:
    make("ca")
    (first,), (second,) = make("client", "billing").objects, make("client", "shipping").objects
    path = tmp_path / "certs" / "revoked.pem"
    for arguments, count in (((), 0), ((first["certificate"],), 1), ((second["certificate"],), 2), ((), 2)):
        (made,) = make("revoke", *arguments).objects
        assert (made["list"], made["revoked"]) == (str(path), count)
    found = x509.load_pem_x509_crl(path.read_bytes())
    assert {one.serial_number for one in found} == {
        loaded(one["certificate"]).serial_number for one in (first, second)
    }
    ca = loaded(str(tmp_path / "certs" / "ca.pem"))
    assert found.is_signature_valid(ca.public_key())  # type: ignore[arg-type]


def test_only_an_authoritys_own_certificates_can_be_revoked(make: Any, run: Any, tmp_path: Path) -> None:
    make("ca")
    other = tmp_path / "others"
    run("--json", "cert", "ca", "--dir", str(other))
    run("--json", "cert", "client", "--dir", str(other))
    for path in (other / "client.pem", other / "client.key", tmp_path / "missing"):
        assert make("revoke", str(path)).note["error"] == "TLS_OPTION_ILLEGAL"
    (tmp_path / "certs" / "revoked.pem").write_bytes(b"no list")
    assert make("revoke").note["error"] == "TLS_OPTION_ILLEGAL"
