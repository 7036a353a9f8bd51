"""Drafting without a model, on the host."""

from specdecode_api.boot import EngineBoot
from specdecode_engine.speculate.ngram import library
from specdecode_engine.speculate.ngram.proposer import NgramProposer
from specdecode_engine.speculate.ngram.texts import ngram_bytes, text_maker
from specdecode_engine.startup.draft_methods.method import DraftMethod


class FromText(DraftMethod):
    """NGRAM: what followed the same tokens before."""

    may_find_nothing = True

    def unsupported_reason(self) -> str | None:
        reason = library.unsupported_reason()
        return reason and f"NGRAM is in C, compiled at the first start: {reason}"

    def host_bytes(self, boot: EngineBoot, running: int, context_length: int) -> int:
        return ngram_bytes(boot.speculation.ngram, running, context_length)

    def make_proposer(self, boot: EngineBoot) -> NgramProposer:
        maker = text_maker(boot.speculation.ngram, boot.scheduling.max_running_requests)
        return NgramProposer(maker)
