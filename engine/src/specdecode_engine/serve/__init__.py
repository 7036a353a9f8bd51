"""HTTP in front of the core: OpenAI's wire form outside, ids and numbers inside.

Text exists only here. Torch does not: the core is met through the protocol in `core`, runs in one
thread of its own (`engine_thread`) and is spoken to by messages. Everything else lives on one
event loop and needs no locks. Pydantic ends at `wire`; errors take OpenAI's form in `errors`.
"""

from specdecode_engine.serve.core import Core, LoadedEngine, Progress
from specdecode_engine.serve.server import serve
from specdecode_engine.serve.table_watch import BadConfiguration

__all__ = ["BadConfiguration", "Core", "LoadedEngine", "Progress", "serve"]
