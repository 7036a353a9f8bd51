"""The admin endpoint of the speculation table: look at it, and exchange it while running."""

import json

from fastapi import APIRouter, Request

from specdecode_api import names
from specdecode_api.table import BadTable
from specdecode_engine.depth.decision import TableRefused
from specdecode_engine.serve import errors
from specdecode_engine.serve.service import service_of

router = APIRouter()

SOURCE = f"PUT {names.PATH_TABLE}"


@router.get(names.PATH_TABLE)
async def get_table(request: Request) -> dict[str, object]:
    """Show the table in force."""
    return service_of(request).tables.describe()


@router.put(names.PATH_TABLE)
async def put_table(request: Request) -> dict[str, object]:
    """Choose depths by another table from the next round on; no request notices.

    The body is a table in any form. A bad one is answered with 400 and every mistake, one that
    only a restart could serve with 409; the old one then stays.
    """
    service = service_of(request)
    service.lifecycle.check_admission()
    try:
        document = json.loads(await request.body())
    except ValueError as error:
        raise errors.ApiError(400, f"the body is no JSON: {error}; send a table") from None
    try:
        await service.tables.take_document(document, SOURCE)
    except BadTable as error:
        raise errors.ApiError(400, str(error), code="bad_table") from None
    except TableRefused as error:
        raise errors.ApiError(409, str(error), code="needs_restart") from None
    return service.tables.describe()
