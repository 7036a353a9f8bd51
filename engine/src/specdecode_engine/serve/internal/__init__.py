"""The endpoints for routers on the management port: generate and continue answers."""
