"""Whether an API server keeps volumes that are images; where that is off, it drops them in silence.

Pods would then start without their model. Kubernetes has the feature gate `ImageVolume` since 1.31;
it is on by default from 1.35.
"""

from specdecode_operator.kinds import DEPLOYMENT, Manifest

REFUSED = (
    "a model of oci:// is mounted as an image volume, and this cluster drops such volumes; turn on "
    "the feature gate ImageVolume in API server and kubelets (Kubernetes 1.33 and 1.34; later it "
    "is on), or use hf:// or pvc://"
)


def image_volumes(manifest: Manifest) -> frozenset[str]:
    """Names of the volumes in a Deployment that are images; none in anything else."""
    if manifest["kind"] != DEPLOYMENT.kind:
        return frozenset()
    volumes = manifest["spec"]["template"]["spec"].get("volumes") or ()
    return frozenset(volume["name"] for volume in volumes if "image" in volume)
