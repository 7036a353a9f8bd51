"""The notes of a release: changes, images by digest, and how to verify them."""

from collections.abc import Mapping

from scripts.release_steps.publish import Registry
from scripts.release_steps.source import Source


def write_notes(
    source: Source, registry: Registry, references: Mapping[str, str], chart: str
) -> str:
    """Write the notes as Markdown."""
    rows = [f"| {name} | `{reference}` |" for name, reference in references.items()]
    key = registry.signing.public_key
    verify = " ".join(
        [
            "cosign",
            "verify",
            *(["--key", "cosign.pub"] if key else registry.signing.words_to_verify()),
        ]
    )
    install = f"helm install specdecode oci://{registry.address}/charts/specdecode"
    return "\n".join(
        [
            f"# specdecode {source.version}",
            "",
            f"Commit `{source.commit()}`.",
            "",
            "```console",
            f"$ {install} --version {source.version} \\",
            "    --namespace specdecode-system --create-namespace",
            "```",
            "",
            "| image | digest |",
            "|---|---|",
            *rows,
            f"| chart | `{chart}` |",
            "",
            "Images and chart are signed, and each image has a bill of materials (CycloneDX):",
            "",
            "```console",
            f"$ {verify} IMAGE@DIGEST",
            f"$ {verify.replace('verify', 'verify-attestation', 1)} --type cyclonedx IMAGE@DIGEST",
            "```",
            "",
            source.changes(),
            "",
        ]
    )
