// The program that holds a pod's namespaces open.
module specdecode.io/cluster/pause

go 1.24.0
