"""Checks of the page of an engine that take long, or need a package of npm."""
