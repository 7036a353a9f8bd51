"""Policies and judges in simulated worlds."""
