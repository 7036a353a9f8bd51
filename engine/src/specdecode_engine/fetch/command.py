"""`specdecode-engine fetch`: downloads the models of a pod before its engine starts."""

import argparse
import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from specdecode_api.command_line import ArgumentParser
from specdecode_api.model_uri import HubLocation, parse_uri
from specdecode_api.report import ModelRole, ModelState, TerminationMessage, TerminationReason
from specdecode_engine.fetch.download import Download, ModelFolder, link
from specdecode_engine.fetch.hub import FetchError, Hub
from specdecode_engine.fetch.progress import Counts, answering
from specdecode_engine.process import leave

log = logging.getLogger(__name__)

FAILED = 1


def fetch(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Fetch every named model, write the termination message and return the exit code."""
    options = _parser().parse_args(arguments)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    uris = {role: uri for role in ModelRole if (uri := getattr(options, role)) is not None}
    if not uris:
        _parser().error("name a model with --target or --draft")
    counts = Counts(uris)
    hub = Hub(environment.get("HF_ENDPOINT") or None, environment.get("HF_TOKEN") or None)
    pins = _pins(options.pins)
    with ExitStack() as stack:
        if options.port is not None:
            stack.enter_context(answering(options.port, counts.progress))
        for role, uri in uris.items():
            try:
                folder = _fetch_one(role, uri, pins, options.cache, hub, counts)
            except FetchError as error:
                counts.move(role, ModelState.FAILED)
                log.error("%s", error)
                leave(_words(error.reason, str(error), counts))
                return FAILED
            if options.links is not None:
                link(options.links / role, folder)
            print(f"{role} {folder.path}")
    leave(_words(TerminationReason.FETCHED, "every model is complete and checked", counts))
    return 0


def _fetch_one(
    role: ModelRole, uri: str, pins: Mapping[str, str], cache: Path, hub: Hub, counts: Counts
) -> ModelFolder:
    location = parse_uri(uri)
    assert isinstance(location, HubLocation), "the parser takes no other URIs"
    if uri in pins:
        location = HubLocation(location.repository, pins[uri])
    return Download(role, uri, location, cache, hub, counts).run()


def _words(reason: TerminationReason, message: str, counts: Counts) -> TerminationMessage:
    return TerminationMessage(reason=reason, message=message, models=counts.progress().models)


def _pins(path: Path | None) -> dict[str, str]:
    """Read the commit of each pinned URI; a missing file pins nothing."""
    if path is None or not path.exists():
        return {}
    return {str(uri): str(commit) for uri, commit in json.loads(path.read_text()).items()}


def _hub_uri(text: str) -> str:
    if not text.startswith("hf://"):
        raise argparse.ArgumentTypeError(f"{text} is not on the hub; write hf://ORG/NAME@REVISION")
    return text


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="specdecode-engine fetch",
        description="Download checkpoints from the Hugging Face Hub, with resume and checksums.",
        epilog="HF_TOKEN sets the access token and HF_ENDPOINT a mirror, as in huggingface_hub.",
    )
    for role in ModelRole:
        help_text = f"{role.capitalize()}: hf://ORG/NAME@REVISION."
        parser.add_argument(f"--{role}", type=_hub_uri, metavar="URI", help=help_text)
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR", help="Cache folder.")
    parser.add_argument("--links", type=Path, metavar="DIR", help="Link DIR/target, DIR/draft.")
    parser.add_argument("--pins", type=Path, metavar="FILE", help="JSON: URI to commit.")
    parser.add_argument("--port", type=int, help="Port to serve /progress on.")
    return parser
