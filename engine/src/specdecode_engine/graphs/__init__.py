"""Captured passes and the runtime states made of them; what is captured, `graph_plan` decides.

A runner owns no tensor: all runners share one set of inputs, one set of outputs, one memory pool
and one stream, sized for the largest of them, so that a batch computes the same at every depth.
Rounds and drafters call `RuntimeStates.run` and do not know whether a pass was captured.
"""
