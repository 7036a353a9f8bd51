"""How fast, and how quietly, the operator works against a real API server and etcd.

Rows O1 to O6: children of a new resource, a burst, 500 resources at rest, the verdict of a trial, a
restart, and the operator's share of the time until a pod is routable. Times are taken where a
client sees them, by watches of the bench's own; writes are counted by object versions and by the
operator's metrics. Everything shares this machine, so read times as upper bounds.
"""
