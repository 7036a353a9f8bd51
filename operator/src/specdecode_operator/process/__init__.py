"""The running operator: start, permissions, leader election, work queue, logs."""
