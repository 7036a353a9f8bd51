"""The prefix cache under load: what a lookup costs, and thousands of requests that share prefixes.

`timing` measures the cache alone, `crowd` draws requests and serves them on the example models,
over few pages, against an engine without a cache.
"""
