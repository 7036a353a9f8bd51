"""Registries and signatures: crane pushes and tags, helm pushes the chart, cosign signs."""

import base64
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts.release_steps.commands import run, succeeds
from scripts.release_steps.errors import ReleaseError
from scripts.release_steps.layout import Layout

_PUSH_TIMEOUT_S = 3600
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Signing:
    """Whose signature it is: a key, or in CI an identity that Sigstore certifies.

    The transparency log is left out only where a throwaway key signs.
    """

    key: str | None = None
    public_key: str | None = None
    identity: str | None = None
    issuer: str | None = None
    is_logged: bool = True

    def words_to_sign(self) -> list[str]:
        """Flags of `cosign sign` and `cosign attest`."""
        words = ["--yes", *(("--key", self.key) if self.key else ())]
        return words if self.is_logged else [*words, "--tlog-upload=false"]

    def words_to_verify(self) -> list[str]:
        """Flags of `cosign verify`."""
        words: list[str] = []
        if self.public_key:
            words += ["--key", self.public_key]
        if self.identity:
            words += ["--certificate-identity-regexp", self.identity]
        if self.issuer:
            words += ["--certificate-oidc-issuer", self.issuer]
        return words if self.is_logged else [*words, "--insecure-ignore-tlog=true"]


@dataclass(frozen=True, slots=True)
class Registry:
    """Where a release goes, and the programs that bring it there."""

    address: str  # host and namespace, such as ghcr.io/owner
    programs: Path  # crane and cosign
    helm: Path
    signing: Signing
    is_plain_http: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def reference(self, repository: str, digest: str) -> str:
        """The name of a manifest that can never mean another."""
        return f"{self.address}/{repository}@{digest}"

    def holds(self, repository: str, tag: str) -> bool:
        """Whether a tag is taken."""
        return succeeds([self._crane, "digest", f"{self.address}/{repository}:{tag}"])

    def log_in(self, user: str, password: str) -> None:
        """Log in with crane and helm; cosign uses crane's."""
        host = self.address.partition("/")[0]
        words = ["--username", user, "--password-stdin"]
        run([self._crane, "auth", "login", host, *words], stdin=password)
        run([self.helm, "registry", "login", host, *words], stdin=password)

    def push_image(self, layout: Layout, repository: str) -> str:
        """Push an index with all its images under its digest, without a tag."""
        reference = self.reference(repository, layout.index_digest())
        words = ("push", "--index", layout.folder, reference)
        run([self._crane, *words], timeout_s=_PUSH_TIMEOUT_S)
        return reference

    def tag_image(self, reference: str, tag: str) -> None:
        """Give a pushed index its name."""
        run([self._crane, "tag", reference, tag])

    def push_chart(self, package: Path) -> str:
        """Push a chart to `charts/` under its version; returns its reference by digest."""
        words = ("push", package, f"oci://{self.address}/charts")
        output = run([self.helm, *words, *self._plain()])
        found = _DIGEST.search(output)
        if found is None:
            raise ReleaseError(f"helm push names no digest: {output}")
        return self.reference("charts/specdecode", found[0])

    def pull_chart(self, version: str, to: Path) -> bytes:
        """Pull a chart as a user does."""
        words = [f"oci://{self.address}/charts/specdecode", "--version", version]
        run([self.helm, "pull", *words, "--destination", to, *self._plain()])
        return (to / f"specdecode-{version}.tgz").read_bytes()

    def sign(self, reference: str) -> None:
        """Sign an index and all that it lists, or a chart, and verify that."""
        self._cosign("sign", "--recursive", *self.signing.words_to_sign(), reference)
        self._cosign("verify", *self.signing.words_to_verify(), reference)

    def attest(self, reference: str, bill: Path) -> None:
        """Attach an image's bill of materials, signed, and read it back.

        Raises:
            ReleaseError: when what is attached is not the bill.
        """
        kind = ("--type", "cyclonedx")
        given = ("--predicate", str(bill))
        self._cosign("attest", *kind, *given, *self.signing.words_to_sign(), reference)
        words = ("verify-attestation", *kind, *self.signing.words_to_verify(), reference)
        if _predicate(self._cosign(*words)) != json.loads(bill.read_text()):
            raise ReleaseError(f"{reference} has another bill of materials than {bill}")

    def _cosign(self, *words: str) -> str:
        command: list[str | Path] = [self.programs / "cosign", *words]
        return run(command, environment=self.environment, timeout_s=_PUSH_TIMEOUT_S)

    @property
    def _crane(self) -> Path:
        return self.programs / "crane"

    def _plain(self) -> list[str]:
        return ["--plain-http"] if self.is_plain_http else []


def throwaway_key(programs: Path, folder: Path) -> Signing:
    """Make a key pair without a password, for a dry run."""
    environment = {"COSIGN_PASSWORD": ""}
    run([programs / "cosign", "generate-key-pair"], directory=folder, environment=environment)
    private, public = str(folder / "cosign.key"), str(folder / "cosign.pub")
    return Signing(key=private, public_key=public, is_logged=False)


def verify_with_another_key_fails(registry: Registry, reference: str) -> bool:
    """Whether a signature is refused under a key that did not make it."""
    with tempfile.TemporaryDirectory() as folder:
        other = throwaway_key(registry.programs, Path(folder))
        words = ("verify", *other.words_to_verify(), reference)
        return not succeeds([registry.programs / "cosign", *words])


def _predicate(output: str) -> object:
    """Read the predicate of an attestation as cosign prints it: a line of JSON with an envelope."""
    for line in output.splitlines():
        if line.startswith("{"):
            payload = json.loads(base64.b64decode(json.loads(line)["payload"]))
            return payload["predicate"]
    raise ReleaseError(f"cosign prints no attestation: {output}")
