"""Checkpoints from the Hugging Face hub into a folder: resumed, checked, and complete or not there.

The hub's own library speaks to the hub; what is on disk is ours, because the library forgets a
file that was cut short and checks no content. No torch here.
"""
