"""Readers of one Kubernetes object. Pure."""
