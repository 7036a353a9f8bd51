"""`kubectl specdecode`: shows custom resources and engines, with the user's permissions.

Deciding and drawing (`diagnosis`, `scrape`, `rates`, `*_view`) is pure; only `reach` sends requests
to the API server; the commands combine both.
"""
