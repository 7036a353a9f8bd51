"""Calls to engines of another runtime, through their own API."""
