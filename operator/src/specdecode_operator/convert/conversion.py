"""A command line of vLLM as a custom resource, with what was dropped and why."""

import itertools
from dataclasses import dataclass
from typing import Final

import yaml

from specdecode_api.v1alpha1.resources import WHOLE_GPU
from specdecode_api.v1alpha1.runtimes import RuntimeName
from specdecode_operator.convert import specdecode_flags, vllm_flags
from specdecode_operator.convert.environment import API_KEY_VARIABLE, HUB_TOKENS, read_environment
from specdecode_operator.convert.errors import ConvertError
from specdecode_operator.convert.fields import is_number
from specdecode_operator.convert.manifest import valid_manifest
from specdecode_operator.convert.model import checkpoint_uri, resource_name
from specdecode_operator.convert.options import (
    API_KEY,
    Option,
    ReadFile,
    ReadOptions,
    read_options,
)
from specdecode_operator.convert.program import ServerCommand, server_command
from specdecode_operator.convert.result import Dropped, ResourceDraft
from specdecode_operator.convert.secrets import (
    SecretReference,
    contains_any,
    may_contain_key,
    shown,
)
from specdecode_operator.convert.shell_words import split_command
from specdecode_operator.convert.speculation import FLAGS, SpeculationReader, read_document
from specdecode_operator.objects.kinds import Manifest

_HUB_TOKEN: Final = "--hf-token"
_SERVED_NAME: Final = "--served-model-name"
_REVISION: Final = "--revision"
_SEVERAL_NODES: Final = frozenset({"--nnodes", "--node-rank", "--headless"})
_READ_HERE: Final = frozenset(
    {API_KEY, _HUB_TOKEN, _SERVED_NAME, _REVISION, *_SEVERAL_NODES, *FLAGS}
)
_MAY_BE_KEY: Final = (
    "it may contain a key, which everyone who may read the resource would see; give it to the "
    "engine by a variable of a Secret or a file in template"
)
_DEFAULTS: Final = {
    "--max-num-seqs 64": "engine.scheduler.maxRunningRequests",
    "--max-num-queued-reqs": "engine.scheduler.maxQueuedRequests",
    "--enable-prefix-caching": "engine.kvCache.prefixCaching",
    "--shutdown-timeout 60": "lifecycle.drainTimeout",
}
"""What the operator sets for vLLM where the resource has nothing, with the field."""


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What a user adds to a command line; URIs and names win over those in it."""

    runtime: RuntimeName = "VLLM"
    name: str | None = None
    model_uri: str | None = None
    draft_uri: str | None = None
    image: str | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """A resource, and what people must know of it."""

    manifest: Manifest
    dropped: tuple[Dropped, ...]
    notes: tuple[str, ...]
    secrets: tuple[SecretReference, ...]

    def text(self) -> str:
        """The resource as YAML."""
        return yaml.safe_dump(self.manifest, sort_keys=False, width=100, allow_unicode=True)

    def report(self) -> list[str]:
        """Lines about what was dropped, what differs, and which Secrets must exist."""
        return [
            *(f"dropped {each.line()}" for each in self.dropped),
            *(f"note: {each}" for each in self.notes),
            *(
                f"Secret {each.name} ({each.purpose}); create it with: {each.command()}"
                for each in self.secrets
            ),
        ]


def convert(text: str, wanted: ConvertOptions, read_file: ReadFile) -> Converted:
    """Convert one command line.

    Raises:
        ConvertError: with every reason that was found, and no key.
    """
    command = server_command(split_command(text))
    try:
        return _Conversion(command, read_options(command, read_file), wanted).convert()
    except RecursionError:
        raise ConvertError("a JSON value has too many levels: remove some") from None


class _Conversion:
    """One command line on its way to a resource."""

    def __init__(
        self, command: ServerCommand, options: ReadOptions, wanted: ConvertOptions
    ) -> None:
        self._environment, self._options, self._wanted = command.environment, options, wanted
        self._draft = ResourceDraft()
        served = options.of(_SERVED_NAME)
        self._served = options.model if served is None else served.words[0]
        self._name = wanted.name or resource_name(self._served)

    def convert(self) -> Converted:
        draft, is_vllm = self._draft, self._wanted.runtime == "VLLM"
        self._add_model()
        if self._wanted.image is not None:
            draft.set("engine.image", self._wanted.image, "--image")
        self._refuse_nodes()
        others = tuple(each for each in self._options.options if self._is_setting(each))
        flags = vllm_flags if is_vllm else specdecode_flags
        flags.add_flags(draft, ReadOptions(self._options.model, others))
        self._add_speculation()
        self._add_accelerators()
        self._add_secrets()
        read_environment(draft, self._environment, self._wanted.runtime, self._name)
        if draft.errors:
            raise ConvertError(*draft.errors)
        manifest = valid_manifest(draft, self._name)
        if is_vllm:
            vllm_flags.check_tools(draft, self._options)
            self._note_defaults()
        found = Converted(manifest, tuple(draft.dropped), self._notes(), tuple(draft.secrets))
        _refuse_leaks(found, self._secret_values())
        return found

    def _add_model(self) -> None:
        model, revision = self._options.model, self._options.of(_REVISION)
        served = self._options.of(_SERVED_NAME)
        try:
            at = None if revision is None else revision.words[0]
            uri = checkpoint_uri(model, at, self._wanted.model_uri, "--model-uri")
        except ValueError as error:
            self._draft.errors.append(f"model {error}")
            return
        self._draft.set("model.uri", uri, "model")
        if revision is not None and self._wanted.model_uri is not None:
            self._draft.drop(revision.given, "--model-uri names the checkpoint")
        origin = f"the name {shown([model])}" if served is None else served.given
        self._draft.set("model.servedName", self._served, origin)
        if served is not None and len(served.words) > 1:
            others = f"{_SERVED_NAME} … {shown(served.words[1:])}"
            self._draft.drop(others, "a model has one name; the first is kept")

    def _is_setting(self, option: Option) -> bool:
        """Whether a flag becomes a field or an argument; one with a key is listed instead."""
        if option.flag in _READ_HERE:
            return False
        if option.is_secret or (not is_number(option) and any(map(may_contain_key, option.words))):
            self._draft.drop(option.given, _MAY_BE_KEY)
            return False
        return True

    def _refuse_nodes(self) -> None:
        for option in self._options.options:
            if option.flag in _SEVERAL_NODES and option.words[0] not in ("0", "1", "false"):
                self._draft.errors.append(
                    f"{option.given}: an engine runs in one pod, and several nodes are not "
                    "supported; lower tensor, pipeline or data parallelism to the GPUs of one node"
                )

    def _add_speculation(self) -> None:
        if not any(each.flag in FLAGS for each in self._options.options):
            return
        try:
            document = read_document(self._options)
        except ValueError as error:
            self._draft.errors.append(str(error))
            return
        if document:
            SpeculationReader(
                self._draft, self._wanted.runtime, self._options.model, self._wanted.draft_uri
            ).read(document)

    def _add_accelerators(self) -> None:
        parts = ("tensor", "pipeline", "data")
        gpus = 1
        for part in parts:
            size = self._draft.get(f"parallelism.{part}", 1)
            gpus *= size if isinstance(size, int) else 1
        self._draft.set("resources.limits", {WHOLE_GPU: gpus})

    def _add_secrets(self) -> None:
        keys = self._options.of(API_KEY)
        if keys is not None or self._environment.get(API_KEY_VARIABLE):
            name = f"{self._name}-api-keys"
            self._draft.set("serving.apiKeys.secretName", name, API_KEY)
            self._add_secret(name, "keys", API_KEY_VARIABLE, "API keys, one on each line")
        if self._hub_token():
            name = f"{self._name}-hugging-face"
            self._draft.set("download.tokenSecret.name", name, _HUB_TOKEN)
            self._add_secret(name, "HF_TOKEN", "HF_TOKEN", "token of the Hugging Face Hub")

    def _add_secret(self, name: str, key: str, variable: str, purpose: str) -> None:
        self._draft.secrets.append(SecretReference(name, ((key, variable),), purpose))

    def _hub_token(self) -> bool:
        token = self._options.of(_HUB_TOKEN)
        return token is not None or any(map(self._environment.get, HUB_TOKENS))

    def _secret_values(self) -> list[str]:
        options = [each for each in self._options.options if each.is_secret]
        values = [self._environment.get(each, "") for each in (*HUB_TOKENS, API_KEY_VARIABLE)]
        return [*values, *itertools.chain.from_iterable(each.words for each in options)]

    def _notes(self) -> tuple[str, ...]:
        """Notes without those about flags that were dropped later."""
        dropped = tuple(f"{each.given}: " for each in self._draft.dropped)
        return tuple(each for each in self._draft.notes if not each.startswith(dropped))

    def _note_defaults(self) -> None:
        missing = [
            f"{argument} ({path})"
            for argument, path in _DEFAULTS.items()
            if self._draft.get(path) is None
        ]
        if missing:
            self._draft.notes.append(f"the operator also sets {', '.join(missing)}")


def _refuse_leaks(found: Converted, secrets: list[str]) -> None:
    """Refuse a key that also stands where it would be printed, as in a name."""
    if contains_any("\n".join([found.text(), *found.report()]), secrets):
        raise ConvertError(
            "the value of a key or token also occurs in another flag, where it would be printed: "
            "replace it there"
        )
