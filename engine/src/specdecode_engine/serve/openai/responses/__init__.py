"""POST /v1/responses: items in, items out, by way of chat."""
