// Not a program: pins a small OCI registry and everything it is built from.
module specdecode.io/cluster/registry

go 1.25.0

tool github.com/google/go-containerregistry/cmd/registry

require github.com/google/go-containerregistry v0.22.1 // indirect
