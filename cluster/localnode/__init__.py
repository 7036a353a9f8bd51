"""A real single-node Kubernetes on this machine, from package registries only.

Nothing is downloaded ready-made: Kubernetes, etcd, CoreDNS and Helm are built from the Go module
proxy, containerd and buildah come from Debian, the base image from a Debian mirror. One node per
machine, in network ranges of its own; whatever it leaves behind after a crash is found and removed.

Floors, each importing only from those below it:

    __main__                                    the commands
    lifecycle, images, status, external         what a command does
    controlplane, node, dns, cleanup, build     the parts
    tools, containerd, network, flags, ...      one mechanism each
    errors, paths, progress, versions           no import from this package but each other

Every failure that a person can do something about is a `NodeError` that says what to do.
"""
