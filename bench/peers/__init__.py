"""Other engines beside ours: installed, given the same model and requests, asked, compared.

Every contestant is a process that answers lines of JSON and tells its own processor time
(`answering`, `worker`, `workers/`). `contest` interleaves them, `figures` works out ratios,
`targets` and `report` show them; `serve_bench` measures servers over HTTP.
"""
