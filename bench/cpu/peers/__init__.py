"""Compares other engines with ours: installs them, gives all the same model and requests.

Every contestant is a process that answers lines of JSON and reports its own processor time
(`answering`, `worker`, `workers/`). `contest` interleaves them, `figures` works out ratios,
`targets` and `report` show them; `serve_bench` measures servers over HTTP.
"""
