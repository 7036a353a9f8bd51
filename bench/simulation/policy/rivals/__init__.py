"""Policies of other servers, reimplemented from what is published about their behavior."""
