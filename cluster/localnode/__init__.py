"""A real single-node Kubernetes on this machine, from package registries only.

Nothing is downloaded ready-made: Kubernetes, etcd, CoreDNS and Helm are built from the Go module
proxy, containerd and buildah come from Debian, the base image from a Debian mirror. One node per
machine, in network ranges of its own; whatever it leaves behind after a crash is found and removed.

Floors, each importing only from those below it:

    __main__                                        the commands
    status, external                                what is, and clusters that are not ours
    lifecycle, images                               what a command does
    cleanup, node, transfer, base_image             the parts of it
    dns
    controlplane, containerd, buildah, docker       one program each, or one kind
    tools, launch, flags                            how programs are installed, started, configured
    processes, pki, network, mounts, cgroups, ...   one mechanism each
    errors, paths, progress, versions, shell

Every failure that a person can do something about is a `NodeError` with the remedy.
"""
