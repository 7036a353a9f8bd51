"""Trials on the local node: real engines under requests that never stop, a real operator.

`make rollout-suite`. What each act does to the resource stands in `acts`; the stage and the load
are those of `traffic`.
"""
