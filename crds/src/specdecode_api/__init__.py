"""The contract: the custom resource, the boot file, and every name that two programs share.

Only pydantic may be imported here, and yaml where files are generated. Nothing in this package
does I/O except `__main__`, which writes the generated files. Operator and engine depend on it; it
depends on neither.
"""
