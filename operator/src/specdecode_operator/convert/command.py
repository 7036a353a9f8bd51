"""The command `convert` of both programs: its arguments, what it reads, what it prints."""

import argparse
import sys
from pathlib import Path

from specdecode_operator.convert.errors import ConvertError
from specdecode_operator.convert.shell_words import MAX_CHARACTERS

DESCRIPTION = (
    "Convert a command line of vllm serve into a SpecDecodeDeployment on standard output. Standard "
    "error lists what was dropped and why, and the Secrets that must exist. No cluster is needed, "
    "nothing is run, and no key is printed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convert`."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "command",
        nargs="?",
        metavar="COMMAND",
        help="the command line as one word, such as 'vllm serve ORG/NAME --max-model-len 8192', or "
        "- for standard input",
    )
    source.add_argument("-f", "--file", metavar="FILE", help="a file with the command line")
    parser.add_argument(
        "--runtime",
        choices=("VLLM", "Specdecode"),
        default="VLLM",
        help="engine.runtime of the resource (VLLM)",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="name of the resource (from that of the model)"
    )
    parser.add_argument(
        "--model-uri",
        metavar="URI",
        help="where pods find the model, such as pvc://CLAIM/FOLDER (hf:// and its name)",
    )
    parser.add_argument("--draft-uri", metavar="URI", help="where pods find the draft")
    parser.add_argument(
        "--image", metavar="IMAGE", help="engine.image of the resource (that of the operator)"
    )


def run_convert(options: argparse.Namespace) -> None:
    """Print the resource, and the report on standard error.

    Raises:
        ConvertError: the command line is refused.
    """
    # Imported here: the contract takes a while to import, and `--help` does not need it.
    from specdecode_operator.convert.conversion import ConvertOptions, convert

    wanted = ConvertOptions(
        options.runtime, options.name, options.model_uri, options.draft_uri, options.image
    )
    found = convert(_text(options), wanted, _read_file)
    for line in found.report():
        print(line, file=sys.stderr)
    sys.stderr.flush()
    sys.stdout.write(found.text())


def _text(options: argparse.Namespace) -> str:
    try:
        if options.file is not None:
            return _read_file(options.file)
        return sys.stdin.read() if options.command == "-" else str(options.command)
    except OSError as error:
        raise ConvertError(f"cannot read {options.file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConvertError("the command line is not UTF-8") from None


def _read_file(path: str) -> str:
    with Path(path).open(encoding="utf-8") as file:
        text = file.read(MAX_CHARACTERS + 1)
    if len(text) > MAX_CHARACTERS:
        raise ConvertError(f"{path} has more than {MAX_CHARACTERS} characters: shorten it")
    return text
