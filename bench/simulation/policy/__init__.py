"""The depth policies against loads and machines that change: how many tokens each one loses.

A simulator of decode steps. The policy is the engine's own object and gets what an engine would
pass to it: accepted drafts, KV, noisy seconds, one step late. Only the world is made up, from
published or measured costs (`profiles`) and from loads with known acceptance (`scenarios`), so the
best depth of every moment is known and regret can be counted against it.
"""
