"""`make serve`: the demo's resource on this machine, without Kubernetes.

The operator's own code writes the boot file from the resource; only the volume is replaced by the
folder it would hold.
"""

import os
import sys
import tempfile
from pathlib import Path

from specdecode_engine.__main__ import main as serve_engine
from specdecode_operator.commands.render import FileError, boot

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Write the boot file and serve it; FILE, PORT and MANAGEMENT_PORT choose others."""
    resource = Path(os.environ.get("FILE") or ROOT / "examples" / "specdecode.yaml")
    try:
        document = boot(str(resource), resource.read_text(), ROOT / "examples" / "models")
    except (OSError, FileError) as error:
        print(f"serve: {error}; FILE names the resource to serve", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="specdecode-") as folder:
        file = Path(folder) / "boot.json"
        file.write_text(document)
        port = os.environ.get("PORT") or "8000"
        print(
            f"try: curl -s http://127.0.0.1:{port}/v1/chat/completions "
            "-H 'Content-Type: application/json' -d "
            '\'{"model": "chat", "messages": [{"role": "user", "content": '
            '"What is speculative decoding?"}]}\'',
            file=sys.stderr,
        )
        given = ["--boot", str(file), "--host", "127.0.0.1", "--port", port]
        if management_port := os.environ.get("MANAGEMENT_PORT"):
            given += ["--management-port", management_port]
        return serve_engine(given)


if __name__ == "__main__":
    sys.exit(main())
