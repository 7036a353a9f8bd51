"""`specdecode-router`: serve the API of several engines as one."""

import logging
import sys
from collections.abc import Sequence

from specdecode_router.router_token import NoToken, read_token
from specdecode_router.server import serve
from specdecode_router.settings import parse_flags
from specdecode_server.api_keys import NoApiKeys
from specdecode_server.listen import ListenError
from specdecode_server.request_id import LOG_FORMAT, log_request_ids


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the router until it is stopped; 1 if it cannot start."""
    settings = parse_flags(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=settings.log_level, format=LOG_FORMAT.replace("%(request)s", ""))
    log_request_ids()
    try:
        if settings.engines and settings.token_path is not None:
            read_token(settings.token_path)  # in a pod, the kubelet may write it later
        serve(settings)
    except (ListenError, NoToken, NoApiKeys) as error:
        print(f"specdecode-router: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
