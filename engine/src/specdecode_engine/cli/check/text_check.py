"""What `specdecode-engine check` reports of a target's tokenizer and chat template."""

from dataclasses import replace

from specdecode_api.boot import ServerBoot
from specdecode_engine.serve.openai.stop_tokens import (
    StopTokens,
    config_stop_tokens,
    read_stop_tokens,
)
from specdecode_engine.serve.parsers.formats import resolve_formats
from specdecode_engine.serve.text.loading import TokenizerUnusable, load_text_model
from specdecode_engine.startup.model_check import PairCheck

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "tiktoken.model",
)  # fmt: skip


def check_text(pair: PairCheck) -> tuple[PairCheck, StopTokens]:
    """Return the check, and the tokens that end an answer as the server reads them.

    A target whose tokenizer cannot be used is refused. A folder without one is not, since
    config.json alone can be checked: the tokens are then those of the configs.
    """
    folder, ids = pair.target.path, pair.target.eos_token_ids
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        return pair, config_stop_tokens(folder, ids)
    if pair.target.reason is not None:
        return pair, StopTokens()
    try:
        text = load_text_model(folder)
    except TokenizerUnusable as error:
        return replace(pair, target=replace(pair.target, reason=str(error))), StopTokens()
    formats = resolve_formats(text.chat_template, ServerBoot(), text.vocabulary.added_tokens)
    return pair, read_stop_tokens(folder, ids, text, formats)
