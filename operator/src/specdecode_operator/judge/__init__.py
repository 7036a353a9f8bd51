"""The judge: pure statistics that decide which of two configurations under live traffic stays.

Knows neither Kubernetes nor HTTP nor a clock: evidence in, judgement out. The operator, the fleet
simulator, `replay` and the documentation use these same functions.
"""
