"""Splits the text of a model into content, reasoning and tool calls, by the model's family.

Pure: text in, deltas out. `message` has the deltas and the interface of a parser.
"""
