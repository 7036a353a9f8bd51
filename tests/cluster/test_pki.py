"""Certificates verify against their CA and contain the fields that Kubernetes reads."""

import stat
from pathlib import Path

from cryptography import x509

from localnode.pki import Authority, TokenKeys


def test_an_identity_is_signed_and_keeps_its_key_private(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path)
    identity = authority.issue(
        "kubelet", "system:node:a", organizations=("system:nodes",), addresses=("10.0.0.1", "a.b")
    )
    certificate = x509.load_pem_x509_certificate(identity.certificate.read_bytes())
    certificate.verify_directly_issued_by(authority.certificate)
    assert certificate.subject.rfc4514_string() == "CN=system:node:a,O=system:nodes"
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["a.b"]
    assert stat.S_IMODE(identity.key.stat().st_mode) == 0o600


def test_opening_again_gives_the_same_authority_and_keys(tmp_path: Path) -> None:
    first = Authority.open(tmp_path)
    keys = TokenKeys.open(tmp_path).public.read_bytes()
    assert Authority.open(tmp_path).certificate == first.certificate
    assert TokenKeys.open(tmp_path).public.read_bytes() == keys
