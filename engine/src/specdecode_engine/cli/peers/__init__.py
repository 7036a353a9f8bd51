"""Flags of vLLM and SGLang on the command line of the engine."""
