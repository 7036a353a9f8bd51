"""Addresses that cannot be listened on are refused with what sets them."""

import pytest

from specdecode_api.boot import ServerBoot
from specdecode_engine.serve.listeners import Listeners
from specdecode_server.listen import ListenError


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
