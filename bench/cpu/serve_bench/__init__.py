"""Throughput and latency over HTTP: our server and peers' servers under aiperf's load.

Servers are real processes with one compute thread each, on the same pair of random models; the
load generator runs in an environment of its own. OpenVINO's model server is not on PyPI.
"""
