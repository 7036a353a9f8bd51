"""The fields of requests that vLLM, SGLang and two SDKs define, and what each of them is here."""
