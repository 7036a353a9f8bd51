"""GET /: the page."""

from fastapi import APIRouter, Response

from specdecode_engine.serve.page.document import document, page_headers

router = APIRouter()

PATH = "/"


@router.get(PATH)
async def get_page() -> Response:
    return Response(document(), headers=dict(page_headers()))
