"""Decode speed compared with peers and with plain decoding, and the host's share of a step.

`versus` compares with transformers and OpenVINO GenAI, `quantized` with llama.cpp and
OpenVINO's int8 (both in package `peers`), `host` times the prefix cache and the host's part of a
step, `adaptive` and `crossing` hold adaptive depth against fixed ones, `mixed` shows what rows per
request could gain, `algorithms` reports accept lengths. One thread, processor time, everybody
interleaved within each repeat, medians.
"""
