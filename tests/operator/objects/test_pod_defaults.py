"""What the administrator sets in the pods of all engines."""

import pytest

from specdecode_api import names
from specdecode_operator import owned
from specdecode_operator.objects.pod_defaults import (
    NO_DEFAULTS,
    CaBundle,
    PodDefaults,
    pod_defaults,
)
from specdecode_operator.objects.resource import parse
from specdecode_operator.settings import from_environment

OPENSHIFT = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
BUNDLE = CaBundle("authorities", "ca.pem")


@pytest.fixture
def deploy(example):
    """Deployment of the example from the hub, with a cache claim, before and with defaults."""

    def both(defaults, template=None):
        own = {"template": {"spec": template}} if template else {}
        manifest = example("hub", download={"cacheClaim": "models"}, **own)
        built = owned.build(parse(manifest), "specdecode-engine:test")
        (plain,) = (each for each in built.children if each["kind"] == "Deployment")
        return plain, owned.defaulted(plain, defaults)

    return both


def pod(deployment):
    return deployment["spec"]["template"]["spec"]


def test_without_defaults_nothing_changes(deploy):
    plain, found = deploy(NO_DEFAULTS)
    assert found is plain
    assert pod(plain)["securityContext"]["fsGroup"] == 65532


def test_a_security_context_replaces_that_of_the_operator(deploy):
    plain, found = deploy(PodDefaults(OPENSHIFT, {"runAsUser": 1000}))
    assert pod(found)["securityContext"] == OPENSHIFT
    for container in (*pod(found)["containers"], *pod(found)["initContainers"]):
        assert container["securityContext"] == {"runAsUser": 1000}
    stamp = names.ANNOTATION_DESIRED_HASH
    assert found["metadata"]["annotations"][stamp] != plain["metadata"]["annotations"][stamp]
    labels = plain["spec"]["template"]["metadata"]
    assert found["spec"]["template"]["metadata"] == labels  # the config hash among them


def test_the_template_of_a_resource_takes_precedence(deploy):
    own = {"securityContext": {"fsGroup": 7, "runAsNonRoot": None, "runAsUser": 5}}
    engine = {"name": "engine", "securityContext": {"readOnlyRootFilesystem": False}}
    wanted = {"runAsUser": 1, "runAsNonRoot": True, "supplementalGroups": [9]}
    _, found = deploy(
        PodDefaults(wanted, {"readOnlyRootFilesystem": True}), own | {"containers": [engine]}
    )
    context = pod(found)["securityContext"]
    assert context == {"fsGroup": 7, "runAsUser": 5, "supplementalGroups": [9]}
    (container,) = pod(found)["containers"]
    assert container["securityContext"] == {"readOnlyRootFilesystem": False}


def test_other_containers_of_a_template_are_left_alone(deploy):
    sidecar = {"name": "sidecar", "image": "sidecar:1", "securityContext": {"privileged": False}}
    _, found = deploy(PodDefaults({}, {"runAsUser": 1}), {"containers": [sidecar]})
    by_name = {each["name"]: each for each in pod(found)["containers"]}
    assert by_name["sidecar"]["securityContext"] == {"privileged": False}
    assert by_name["engine"]["securityContext"] == {"runAsUser": 1}


def test_downloads_trust_the_ca_bundle(deploy):
    _, found = deploy(PodDefaults(ca_bundle=BUNDLE))
    (fetch,) = pod(found)["initContainers"]
    assert {"name": "SSL_CERT_FILE", "value": "/etc/specdecode/ca/ca.pem"} in fetch["env"]
    (mount,) = (each for each in fetch["volumeMounts"] if each["name"] == "ca-bundle")
    assert mount == {"name": "ca-bundle", "mountPath": "/etc/specdecode/ca", "readOnly": True}
    (volume,) = (each for each in pod(found)["volumes"] if each["name"] == "ca-bundle")
    items = [{"key": "ca.pem", "path": "ca.pem"}]
    assert volume["configMap"] == {"name": "authorities", "items": items}
    (engine,) = pod(found)["containers"]
    assert "ca-bundle" not in {each["name"] for each in engine["volumeMounts"]}


def test_a_download_that_trusts_others_by_its_template_is_left_alone(deploy):
    env = [{"name": "SSL_CERT_FILE", "value": "/etc/specdecode/ca/own.pem"}]
    mounts = [{"name": "own", "mountPath": "/etc/specdecode/ca"}]
    template = {
        "initContainers": [{"name": "fetch", "env": env, "volumeMounts": mounts}],
        "volumes": [{"name": "own", "configMap": {"name": "own"}}],
    }
    plain, found = deploy(PodDefaults(ca_bundle=BUNDLE), template)
    assert pod(found) == pod(plain)


@pytest.mark.parametrize("env", [[], [{"name": "SSL_CERT_FILE", "value": "/own.pem"}]])
def test_routers_trust_the_ca_bundle_and_start_without_it(env, example):
    """Unless the user's template names other certificates."""
    container = {"name": "router", "env": env}
    template = {"spec": {"containers": [container]}}
    resource = parse(example(router={"template": template}))
    made = owned.routed([], resource, "router:test", is_serving=False)
    (plain,) = (each for each in made if each["kind"] == "Deployment")
    found = pod(owned.defaulted(plain, PodDefaults(ca_bundle=BUNDLE)))
    if env:
        assert found == pod(plain)
        return
    assert {"name": "SSL_CERT_FILE", "value": "/etc/specdecode/ca/ca.pem"} in (
        found["containers"][0]["env"]
    )
    assert found["containers"][0]["volumeMounts"][-1]["mountPath"] == "/etc/specdecode/ca"
    source = found["volumes"][-1]["configMap"]
    assert (source["name"], source["optional"]) == (BUNDLE.config_map, True)


def test_pods_that_download_nothing_need_no_ca_bundle(example):
    built = owned.build(parse(example()), "specdecode-engine:test")
    (plain,) = (each for each in built.children if each["kind"] == "Deployment")
    found = owned.defaulted(plain, PodDefaults(ca_bundle=BUNDLE))
    assert pod(found) == pod(plain)


def test_settings_are_read_from_the_environment():
    found = from_environment(
        {
            "SPECDECODE_POD_SECURITY_CONTEXT": '{"runAsNonRoot": true}',
            "SPECDECODE_CONTAINER_SECURITY_CONTEXT": '{"runAsUser": 5}',
            "SPECDECODE_CA_BUNDLE": "authorities/ca.pem",
        }
    )
    assert found.pod_defaults == PodDefaults({"runAsNonRoot": True}, {"runAsUser": 5}, BUNDLE)
    assert from_environment({}).pod_defaults == NO_DEFAULTS


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("restricted", "", ""), ["SPECDECODE_POD_SECURITY_CONTEXT", "'restricted'", "JSON"]),
        (("[]", "", ""), ["SPECDECODE_POD_SECURITY_CONTEXT", "'[]'"]),
        (("", "1", ""), ["SPECDECODE_CONTAINER_SECURITY_CONTEXT", "'1'"]),
        (("", "", "ca"), ["SPECDECODE_CA_BUNDLE", "'ca'", "CONFIGMAP/KEY"]),
        (("", "", "ca/certs/ca.pem"), ["SPECDECODE_CA_BUNDLE", "CONFIGMAP/KEY"]),
        (("", "", "/ca.pem"), ["SPECDECODE_CA_BUNDLE", "CONFIGMAP/KEY"]),
    ],
)
def test_settings_of_another_form_are_refused(texts, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        pod_defaults(*texts)
    for word in words:
        assert word in str(caught.value)
