"""Reads what a client marks a request with, as far as the engine was told to tell it apart."""

from fastapi import Request

from specdecode_api import names
from specdecode_engine.serve.service import Service


def read_label(request: Request, service: Service) -> str:
    """Return the request's label, or "" for one that is not counted apart.

    Clients can make up as many as they like; series of metrics they cannot.
    """
    label = request.headers.get(names.HEADER_LABEL, "").strip()
    return label if label in service.boot.server.request_labels else ""
