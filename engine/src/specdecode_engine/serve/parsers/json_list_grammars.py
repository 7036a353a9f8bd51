"""Grammars of lists of calls in JSON after a marker."""

import json

from specdecode_engine.serve.parsers import json_lists
from specdecode_engine.serve.parsers.call_grammar import COMMA, CallGrammar, ToolSchema, repeated
from specdecode_engine.serve.parsers.lark import literal


class JsonListCalls(CallGrammar):
    """A list after the trigger, and the marker after it."""

    end = ""

    def calls(self, is_parallel: bool) -> str:
        return f"{self.rules.marker(self.triggers[0])} {self._list(is_parallel)}"

    def after_trigger(self) -> str:
        return self._list(True)

    def _list(self, is_parallel: bool) -> str:
        end = self.rules.marker(self.end) if self.end else ""
        return f'"[" {repeated(self.call(), COMMA, is_parallel)} "]" {end}'

    def call(self) -> str:
        """Return what matches a call."""
        return self.json_call("arguments")


class GraniteCalls(JsonListCalls):
    """Required calls follow the token if the vocabulary has it, else the text."""

    @property
    def triggers(self) -> tuple[str, ...]:
        return self.rules.special_first(json_lists.GRANITE_TEXT, json_lists.GRANITE_TOKEN)


class HunyuanA13BCalls(JsonListCalls):
    trigger = json_lists.CALLS
    end = json_lists.CALLS_END


class ApertusCalls(JsonListCalls):
    trigger = json_lists.APERTUS
    end = json_lists.APERTUS_END

    def call(self) -> str:
        def keyed(tool: ToolSchema) -> str:
            name = literal("{" + json.dumps(tool.name) + ": ")
            return f'{name} {self.arguments(tool)} "}}"'

        return self.one_of(keyed)


class Phi4MiniCalls(CallGrammar):
    """Required calls are objects between tokens if the vocabulary has them, else a list."""

    @property
    def triggers(self) -> tuple[str, ...]:
        return self.rules.special_first(f"{json_lists.PHI_TEXT}[", json_lists.PHI_TOKEN)

    def calls(self, is_parallel: bool) -> str:
        begin = self.triggers[0]
        if begin != json_lists.PHI_TOKEN:
            calls = repeated(self.json_call("arguments"), COMMA, is_parallel)
            return f'{literal(begin)} {calls} "]"'
        end = self.rules.marker(json_lists.PHI_END)
        call = f"{self.rules.marker(begin)} {self.json_call('arguments')} {end}"
        return repeated(self.rules.add(call), "", is_parallel)

    def after_trigger(self) -> str:
        """Return what matches an object, a list, or a list after its bracket, and the end."""
        calls = repeated(self.json_call("arguments"), COMMA, True)
        return f'"["? {calls} "]"? ({self.rules.marker(json_lists.PHI_END)})?'


class InternLm2Calls(CallGrammar):
    trigger = json_lists.ACTION

    def calls(self, is_parallel: bool) -> str:
        call = f"{self.rules.marker(json_lists.ACTION)} {self.after_trigger()}"
        return repeated(self.rules.add(call), '"\\n"', is_parallel)

    def after_trigger(self) -> str:
        plugin, end = map(self.rules.marker, (json_lists.PLUGIN, json_lists.ACTION_END))
        return f'{plugin} "\\n" {self.json_call("parameters")} {end}'
