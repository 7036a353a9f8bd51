"""Endpoints and metrics of vLLM and SGLang, read from their wheels and compared with our rows."""
