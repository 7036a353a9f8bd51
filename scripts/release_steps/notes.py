"""The notes of a release: changes, images by digest, and how to verify them."""

from collections.abc import Mapping

from scripts.release_steps.publish import Registry
from scripts.release_steps.source import Source


def write_notes(
    source: Source,
    registry: Registry,
    references: Mapping[str, str],
    manifests: Mapping[str, str],
    chart: str,
) -> str:
    """Write the notes as Markdown.

    `references` are the indexes by image; `manifests` those of single platforms, each of which has
    a bill of materials.
    """
    flags = registry.signing.words_to_verify()
    words = " ".join(["--key", "cosign.pub"] if registry.signing.public_key else flags)
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
            "All of these are signed:",
            "",
            *_table({**references, "chart": chart}),
            "",
            "Each of these has a signed bill of materials (CycloneDX):",
            "",
            *_table(manifests),
            "",
            "```console",
            f"$ cosign verify {words} NAME@DIGEST",
            f"$ cosign verify-attestation {words} --type cyclonedx NAME@DIGEST",
            "```",
            "",
            source.changes(),
            "",
        ]
    )


def _table(references: Mapping[str, str]) -> list[str]:
    rows = [f"| {name} | `{reference}` |" for name, reference in references.items()]
    return ["| | |", "|---|---|", *rows]
