"""Whether the API server stores image volumes; without the feature gate it drops them silently.

Pods would then start without their model. Kubernetes has the feature gate `ImageVolume` since 1.31;
it is on by default from 1.35.
"""

from specdecode_operator.kinds import DEPLOYMENT, Manifest

REFUSED = (
    "a model of oci:// is mounted as an image volume, which this cluster drops; enable the feature "
    "gate ImageVolume in API server and kubelets (Kubernetes 1.33 and 1.34; on by default later), "
    "or use hf:// or pvc://"
)


def image_volumes(manifest: Manifest) -> frozenset[str]:
    """Names of the image volumes in a Deployment; empty for other kinds."""
    if manifest["kind"] != DEPLOYMENT.kind:
        return frozenset()
    volumes = manifest["spec"]["template"]["spec"].get("volumes") or ()
    return frozenset(volume["name"] for volume in volumes if "image" in volume)
