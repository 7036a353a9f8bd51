"""Addresses that cannot be listened on are refused with what sets them."""

import asyncio
import socket

import pytest

from specdecode_api.boot import ServerBoot
from specdecode_engine.serve.listeners import Listeners
from specdecode_server.listen import ListenError, listen


@pytest.mark.parametrize(
    ("fields", "place", "remedy"),
    [
        ({"host": "no-such-host.invalid"}, "no-such-host.invalid port 0", "--host (boot file:"),
        ({"host": "203.0.113.7"}, "203.0.113.7 port 0: Cannot assign", "--host (boot file:"),
        (
            {"management_host": "203.0.113.7", "management_port": 8001},
            "203.0.113.7 port 8001: Cannot assign",
            "--management-host (boot file: server.management_host)",
        ),
    ],
    ids=["name", "address", "management"],
)
def test_an_address_that_is_not_of_this_machine_is_refused_with_the_setting(
    fields, place, remedy
) -> None:
    boot = ServerBoot.model_validate({"host": "127.0.0.1", "port": 0} | fields)
    with pytest.raises(ListenError) as refused:
        Listeners.open(boot)
    message = str(refused.value)
    assert message.startswith(f"cannot listen on {place}")
    assert f"choose an address of this machine, such as 127.0.0.1, with {remedy}" in message
    assert "end the process" not in message


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_small_packets_are_sent_without_an_acknowledgement(host) -> None:
    async def accepted() -> int:
        found = asyncio.get_running_loop().create_future()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listen(host, 0, "--port", "--host")
        async with await asyncio.start_server(take, sock=listener):
            with socket.create_connection(listener.getsockname()[:2]):
                return int(await found)

    assert asyncio.run(accepted())
