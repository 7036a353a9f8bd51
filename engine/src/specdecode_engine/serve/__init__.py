"""The HTTP server of one engine: OpenAI-compatible API, probes, metrics and admin endpoints.

Text exists only here, and torch does not: the server uses the core through the protocol in
`engine.core`. The core runs in one thread of its own (`engine.engine_thread`), in this process or
in another (`engine.engine_process`); everything else lives on one event loop. Request bodies are
pydantic models (`openai.protocol`) and become the requests of the engine; errors are in OpenAI's
format (`errors`).
"""

from importlib.metadata import version

VERSION = version("specdecode-engine")
"""Of this engine; reading it takes a millisecond, so that it is read once."""
