"""The contract: what a user writes, what an engine reads, and every name that two programs share.

Only pydantic may be imported here, and yaml where files are generated. Nothing in this package
does I/O except `__main__`, which writes the generated files. Operator and engine lean on it; it
leans on neither.
"""
