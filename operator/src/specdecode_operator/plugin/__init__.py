"""`kubectl specdecode`: what a person asks about resources, answered with that person's rights.

Deciding and drawing (`story`, `scrape`, `rates`, `*_view`) is pure; `reach` alone talks to the API
server; the commands bring the two together.
"""
