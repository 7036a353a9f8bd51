"""The flags that vLLM and SGLang define, read from their wheels and compared with our rows."""
