"""Operator and engine of two neighbouring releases exchange tables and drafts, in both orders.

The release before knows the owner alone: its operator sends no token, and its engine requires the
owner where there are API keys and nothing where there are none.
"""

import aiohttp
import pytest

from specdecode_api.table import TableEntry
from specdecode_operator.engines.engine_client import EngineClient

TABLE = {"1": TableEntry(candidate_steps=(0,))}
POD = {
    "metadata": {"name": "chat-1", "namespace": "ns", "uid": "pod-1"},
    "status": {"podIP": "127.0.0.1"},
}
DENIED = ("token", "API key")


async def errors_of(port, owner, token=None):
    """What an engine answers an operator about a table and a draft that it cannot use."""
    async with aiohttp.ClientSession() as http:
        client = EngineClient(http, port)
        if token is not None:
            client.use_token("ns", token)
        table = await client.put_table(POD, owner, TABLE, None)
        draft = await client.put_draft(POD, owner, "/nothing", "v1-new")
    return table.error, str(draft)


@pytest.mark.parametrize("has_keys", [True, False], ids=["keys", "no keys"])
@pytest.mark.parametrize("engine", ["new", "old"])
@pytest.mark.parametrize("operator", ["new", "old"])
async def test_changes_pass_between_neighbouring_releases(
    operator, engine, has_keys, start_server, free_port, tmp_path
):
    """An old engine's rule is that of this one without a path of tokens."""
    keys, tokens = tmp_path / "keys", tmp_path / "tokens"
    keys.write_text("sk-a\n")
    tokens.write_text("secret\n")
    is_new = operator == engine == "new"  # an old operator writes an owner next to keys alone
    server = {
        **({"router_token_path": str(tokens)} if engine == "new" else {}),
        **({"api_key_path": str(keys)} if has_keys else {}),
        **({"owner": "uid-1"} if has_keys or operator == "new" else {}),
    }
    start_server(management_port=free_port, options=server)
    token = "secret" if operator == "new" else None
    for error in await errors_of(free_port, "uid-1", token):
        assert not any(word in error for word in DENIED), error
    if is_new:
        for error in await errors_of(free_port, "uid-1"):
            assert not any(word in error for word in DENIED), error  # for one release
        for error in await errors_of(free_port, "uid-2", "other"):
            assert "need a valid token" in error
