"""The admin endpoint of the speculation table: read it, and replace it at run time."""

import json

from fastapi import APIRouter, Request

from specdecode_api import names
from specdecode_api.table import TableError
from specdecode_engine.adaptive.policy import TableRefused
from specdecode_engine.serve import errors
from specdecode_engine.serve.service import service_of

router = APIRouter()

SOURCE = f"PUT {names.PATH_TABLE}"


@router.get(names.PATH_TABLE)
async def get_table(request: Request) -> dict[str, object]:
    """Return the table in force."""
    return service_of(request).tables.describe()


@router.put(names.PATH_TABLE)
async def put_table(request: Request) -> dict[str, object]:
    """Choose draft steps by another table from the next step on; running requests continue.

    The body is a table in any of its forms. An invalid table is answered with 400 and all its
    errors, a table that requires a restart with 409; the old table then stays in force.
    """
    service = service_of(request)
    service.lifecycle.check_admission()
    try:
        document = json.loads(await request.body())
    except ValueError as error:
        raise errors.HttpError(400, f"the body is not valid JSON: {error}; send a table") from None
    try:
        await service.tables.apply_document(document, SOURCE)
    except TableError as error:
        raise errors.HttpError(400, str(error), code="bad_table") from None
    except TableRefused as error:
        raise errors.HttpError(409, str(error), code="needs_restart") from None
    return service.tables.describe()
