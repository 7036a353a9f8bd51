"""Makes the keys and certificates by which the parts of a cluster know each other.

One authority signs everything: servers prove their address with it, clients their name (the common
name) and groups (the organizations), as Kubernetes reads them.
"""

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = datetime.timedelta(days=3650)
_CLOCK_SLACK = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs identities and keeps them in one folder."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @staticmethod
    def open(folder: Path) -> "Authority":
        """Read the authority of this folder, or make one."""
        files = Identity(folder / "ca.crt", folder / "ca.key")
        if not files.certificate.exists():
            _create_authority(files)
        key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        return Authority(folder, certificate, key)

    @property
    def bundle(self) -> Path:
        """The certificate that others check against, as a file."""
        return self.folder / "ca.crt"

    def issue(
        self,
        file_name: str,
        common_name: str,
        *,
        organizations: tuple[str, ...] = (),
        addresses: tuple[str, ...] = (),
    ) -> Identity:
        """Sign a new identity, good as a client and, at these addresses, as a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            _builder(_name(common_name, organizations), key)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if addresses:
            alternatives = x509.SubjectAlternativeName([_general_name(a) for a in addresses])
            builder = builder.add_extension(alternatives, critical=False)
        files = Identity(self.folder / f"{file_name}.crt", self.folder / f"{file_name}.key")
        _write(files, builder.sign(self.key, hashes.SHA256()), key)
        return files


@dataclass(frozen=True, slots=True)
class TokenKeys:
    """The pair that signs and checks service account tokens."""

    private: Path
    public: Path

    @staticmethod
    def open(folder: Path) -> "TokenKeys":
        """Read the pair of this folder, or make one."""
        files = TokenKeys(folder / "service-accounts.key", folder / "service-accounts.pub")
        if not files.public.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            _write_private(files.private, _pem(key))
            public = key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            files.public.write_bytes(public)
        return files


def _create_authority(files: Identity) -> None:
    files.certificate.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("specdecode-local", ())
    certificate = (
        _builder(name, key)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(files, certificate, key)


def _builder(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(now + _LIFETIME)
    )


def _name(common_name: str, organizations: tuple[str, ...]) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _write(files: Identity, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    _write_private(files.key, _pem(key))
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_private(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
