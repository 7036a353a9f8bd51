"""Detection of drafts that do not fit their target: `make bench-detection`.

The EAGLE-3 head of examples/models is damaged as converters and loaders damage heads, and served;
simulated requests of dialled acceptance count false alarms over whole lives of engines.
"""
