"""What the chart renders, whatever its values."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml

from scripts import chart_values
from specdecode_api import names
from specdecode_operator.objects import kinds

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "specdecode"
HERE = Path(__file__).resolve().parent
SHOWN = ROOT / "examples" / "values"
FILES = [*sorted((HERE / "values").glob("*.yaml")), *sorted(SHOWN.glob("*.yaml"))]
SETS = {path.stem: ("--values", str(path)) for path in FILES}
BAD = {path.stem: path for path in sorted((HERE / "bad").glob("*.yaml"))}
FOREIGN = ("PodMonitor", "PrometheusRule")  # kinds of the Prometheus operator
POLICY = "ValidatingAdmissionPolicy"
DEFINITIONS = ["specdecode.io_specdecodedeployments.yaml", "specdecode.io_specdecodetrials.yaml"]

pytestmark = pytest.mark.apiserver
every_set = pytest.mark.parametrize("flags", SETS.values(), ids=SETS)


def of_kind(manifests, kind):
    return [each for each in manifests if each["kind"] == kind]


def pod_specs(manifests):
    for each in manifests:
        if each["kind"] == "Pod":
            yield each["spec"]
        elif each["kind"] == "Deployment":
            yield each["spec"]["template"]["spec"]


@every_set
def test_helm_lint_reports_nothing(flags, run, helm):
    ran = run(helm, "lint", "--strict", CHART, *flags)
    assert "[WARNING]" not in ran.stdout
    assert "[ERROR]" not in ran.stdout


@every_set
def test_both_major_versions_of_helm_render_the_same(flags, template, helm4):
    assert template(*flags, program=helm4) == template(*flags)


def documents(manifests):
    """The manifests as YAML, each in JSON, which is written and read in a part of the time."""
    return "\n---\n".join(map(json.dumps, manifests))


def kubeconform(run, schemas, manifests):
    words = ("-strict", "-summary", "-output", "json", "-skip", ",".join(FOREIGN))
    location = f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    text = documents(manifests)
    return run("kubeconform", *words, "-schema-location", location, check=False, text=text)


@every_set
def test_kubeconform_knows_every_field(flags, template, run, schemas):
    ran = kubeconform(run, schemas, template(*flags))
    summary = json.loads(ran.stdout)["summary"]
    assert ran.returncode == 0, ran.stdout
    assert summary["valid"] > 5
    assert summary["invalid"] == summary["errors"] == 0


def test_kubeconform_would_see_a_misspelt_field(template, run, schemas):
    deployment = next(each for each in template() if each["kind"] == "Deployment")
    deployment["spec"]["replicaz"] = 1
    ran = kubeconform(run, schemas, [deployment])
    assert ran.returncode == 1
    assert "replicaz" in ran.stdout


@every_set
def test_no_object_is_rendered_twice(flags, template):
    found = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in template(*flags)
    ]
    assert len(set(found)) == len(found)


@pytest.fixture(scope="module")
def namespaces(run):
    """The namespaces that the values name."""
    for namespace in ("specdecode-system", "team-a", "team-b", "models"):
        run("kubectl", "create", "namespace", namespace, check=False)


@every_set
def test_the_api_server_takes_every_object(flags, template, run, definition, namespaces):
    known = [each for each in template(*flags) if each["kind"] not in FOREIGN]
    words = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    run("kubectl", *words, text=documents(known))


ROUTERS = {
    names.LABEL_PART_OF: names.PART_OF,
    names.LABEL_COMPONENT: names.COMPONENT_ROUTER,
}


def policies_of(manifests):
    return {each["metadata"]["name"]: each for each in of_kind(manifests, "NetworkPolicy")}


def test_only_operator_routers_and_prometheus_reach_the_management_port_of_engines(template):
    manifests = template(*SETS["walled-in"])
    policies = policies_of(manifests)
    api, management, forwarded = policies["release-specdecode-operator-engines"]["spec"]["ingress"]
    assert [port["port"] for port in api["ports"]] == [names.ENGINE_PORT]
    assert [port["port"] for port in management["ports"]] == [names.MANAGEMENT_PORT]
    assert [port["port"] for port in forwarded["ports"]] == [names.ENGINE_PORT]
    assert forwarded["from"] == [{"podSelector": {"matchLabels": ROUTERS}}]
    (deployment,) = of_kind(manifests, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    operator, routers, prometheus = management["from"]
    assert operator["podSelector"]["matchLabels"].items() <= labels.items()
    assert routers == {"podSelector": {"matchLabels": ROUTERS}}  # of the same namespace
    assert prometheus["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    egress = policies["release-specdecode-operator"]["spec"]["egress"]
    ports = [names.MANAGEMENT_PORT, names.ENGINE_PORT]  # the second one of other runtimes
    assert [port["port"] for port in egress[-1]["ports"]] == ports


def test_routers_reach_engines_and_the_api_server_and_only_clients_and_prometheus_reach_them(
    template,
):
    policies = policies_of(template(*SETS["walled-in"]))
    spec = policies["release-specdecode-operator-routers"]["spec"]
    assert spec["podSelector"] == {"matchLabels": ROUTERS}
    engines = policies["release-specdecode-operator-engines"]["spec"]
    api, management = spec["ingress"]
    assert api == engines["ingress"][0]
    assert [port["port"] for port in management["ports"]] == [names.MANAGEMENT_PORT]
    assert management["from"] == [engines["ingress"][1]["from"][-1]]
    _, api_server, to_engines, *more = spec["egress"]
    assert api_server == {"ports": [{"port": 6443, "protocol": "TCP"}]}
    of_engines = policies["release-specdecode-operator-engines-egress"]["spec"]
    assert to_engines["to"] == [{"podSelector": of_engines["podSelector"]}]
    ports = [port["port"] for port in to_engines["ports"]]
    assert ports == [names.ENGINE_PORT, names.MANAGEMENT_PORT]
    assert more == of_engines["egress"][2:]  # without tracing


def test_engines_of_every_runtime_have_restricted_egress(template):
    """The policy of other runtimes is the operator's, and of ingress only."""
    policies = policies_of(template(*SETS["walled-in"]))
    ingress = policies["release-specdecode-operator-engines"]["spec"]
    egress = policies["release-specdecode-operator-engines-egress"]["spec"]
    assert (ingress["policyTypes"], egress["policyTypes"]) == (["Ingress"], ["Egress"])
    (condition,) = ingress["podSelector"]["matchExpressions"]
    assert (condition["key"], condition["operator"]) == (names.LABEL_RUNTIME, "DoesNotExist")
    assert egress["podSelector"] == {"matchLabels": ingress["podSelector"]["matchLabels"]}


def test_metrics_of_vllm_are_for_nobody_unless_values_name_them(template):
    """Whoever may read them may also use the API, without a key."""
    (deployment,) = of_kind(template(), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "SPECDECODE_VLLM_METRICS_FROM" not in [each["name"] for each in container["env"]]


def test_policies_admit_both_dns_ports_and_enabled_tracing(template):
    policies = policies_of(template(*SETS["walled-in"]))
    for policy in policies.values():
        if "Egress" not in policy["spec"]["policyTypes"]:
            continue
        dns = [(port["port"], port["protocol"]) for port in policy["spec"]["egress"][0]["ports"]]
        assert dns == [(53, "UDP"), (53, "TCP"), (5353, "UDP"), (5353, "TCP")]
    tracing = policies["release-specdecode-operator-engines-egress"]["spec"]["egress"][1]
    assert [port["port"] for port in tracing["ports"]] == [4318, 8360]
    (receiver,) = tracing["to"]
    assert receiver["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "observability"
    }
    usual = policies_of(template(*SETS["walled-in-teams"]))
    egress = usual["release-specdecode-operator-engines-egress"]["spec"]["egress"]
    assert [[port["port"] for port in each["ports"]] for each in egress[1:]] == [[443]]


def test_without_routers_nothing_is_granted_to_or_admitted_for_them(template):
    manifests = template(*SETS["no-routers"])
    text = yaml.safe_dump_all(
        each for each in manifests if each["kind"] != "CustomResourceDefinition"
    )
    assert "--no-routers" in text
    found = [line for line in text.splitlines() if "router" in line]
    assert [line.split("=")[0].strip(" -") for line in found] == ["router-image", "no-routers"]
    (role,) = (
        each
        for each in of_kind(manifests, "ClusterRole")
        if each["metadata"]["name"] == "release-specdecode-operator"
    )
    granted = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert granted.isdisjoint({"secrets", "roles", "rolebindings"})


def test_without_inference_pools_nothing_is_granted_for_them(template):
    manifests = template(*SETS["no-inference-pools"])
    text = yaml.safe_dump_all(
        each for each in manifests if each["kind"] != "CustomResourceDefinition"
    )
    assert "--no-inference-pools" in text
    assert kinds.INFERENCE_POOL.plural not in text
    assert kinds.INFERENCE_POOL.group not in text
    (policy,) = of_kind(template("--set", "admissionPolicy.enabled=true"), POLICY)
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    (rule,) = (each for each in rules if each["resources"] == [kinds.INFERENCE_POOL.plural])
    assert rule["apiGroups"] == [kinds.INFERENCE_POOL.group]


@every_set
def test_selectors_match_labels(flags, template):
    manifests = template(*flags)
    (deployment,) = of_kind(manifests, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [deployment["spec"]["selector"]["matchLabels"]]
    selectors += [each["spec"]["selector"] for each in of_kind(manifests, "Service")]
    monitors = [
        each
        for each in of_kind(manifests, "PodMonitor")
        if not each["metadata"]["name"].endswith(("-engines", "-routers"))
    ]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in monitors]
    ports = {
        port["name"]
        for container in deployment["spec"]["template"]["spec"]["containers"]
        for port in container["ports"]
    }
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not any("version" in key or "chart" in key for key in selector)
    for service in of_kind(manifests, "Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for monitor in monitors:
        assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= ports


@every_set
def test_pods_meet_the_restricted_security_standard(flags, template):
    specs = list(pod_specs(template(*flags)))
    assert specs
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["nodeSelector"]["kubernetes.io/os"] == "linux"
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            names = [each["name"] for each in container["env"]]
            assert len(set(names)) == len(names)


def test_no_user_is_fixed_and_the_images_set_a_numeric_one(template):
    """OpenShift assigns a user of its own; elsewhere `runAsNonRoot` needs a number in the image."""
    for spec in pod_specs(template()):
        contexts = [spec["securityContext"], *(c["securityContext"] for c in spec["containers"])]
        assert not any({"runAsUser", "runAsGroup", "fsGroup"} & set(each) for each in contexts)
    for member in ("operator", "engine", "router"):
        lines = (ROOT / member / "Dockerfile").read_text().splitlines()
        assert [line for line in lines if line.startswith("USER ")][-1] == "USER 65532:65532"


def test_security_contexts_are_merged_with_the_charts(template):
    for spec in pod_specs(template(*SETS["everything"])):
        context = spec["securityContext"]
        assert (context["runAsUser"], context["runAsNonRoot"]) == (1000, True)
        (container,) = spec["containers"]
        assert container["securityContext"]["privileged"] is False
        assert container["securityContext"]["allowPrivilegeEscalation"] is False


def operator_pod(manifests):
    (deployment,) = of_kind(manifests, "Deployment")
    return deployment["spec"]["template"]["spec"]


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_several_replicas_get_a_disruption_budget_and_prefer_different_nodes(replicas, template):
    manifests = template("--set", f"operator.replicas={replicas}")
    (deployment,) = of_kind(manifests, "Deployment")
    spec, pod = deployment["spec"], operator_pod(manifests)
    assert spec["replicas"] == replicas
    update = {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": update}
    budgets = of_kind(manifests, "PodDisruptionBudget")
    assert len(budgets) == (replicas > 1)
    for budget in budgets:
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["selector"] == spec["selector"]
    spread = pod.get("topologySpreadConstraints", [])
    assert len(spread) == (replicas > 1)
    for each in spread:
        assert each["topologyKey"] == "kubernetes.io/hostname"
        assert each["whenUnsatisfiable"] == "ScheduleAnyway"
        assert each["labelSelector"] == spec["selector"]


def test_a_given_budget_and_given_constraints_replace_the_defaults(template):
    manifests = template(
        *SETS["high-availability"], "--set", "podDisruptionBudget.maxUnavailable=50%"
    )
    (budget,) = of_kind(manifests, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == "50%"
    spread = operator_pod(manifests)["topologySpreadConstraints"]
    keys = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert [each["topologyKey"] for each in spread] == keys
    labels = of_kind(manifests, "Deployment")[0]["spec"]["template"]["metadata"]["labels"]
    assert all(each["labelSelector"]["matchLabels"].items() <= labels.items() for each in spread)


def test_a_ca_bundle_is_mounted_where_its_variable_points(template):
    pod = operator_pod(template(*SETS["everything"]))
    (container,) = pod["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "ca-bundle")
    assert variables["SSL_CERT_FILE"] == f"{mount['mountPath']}/ca.pem"
    assert mount["readOnly"] is True
    (volume,) = (each for each in pod["volumes"] if each["name"] == "ca-bundle")
    item = {"key": "ca.pem", "path": "ca.pem"}
    assert volume["configMap"] == {"name": "authorities", "items": [item]}
    plain = operator_pod(template())
    assert "SSL_CERT_FILE" not in {each["name"] for each in plain["containers"][0]["env"]}
    assert [each["name"] for each in plain["volumes"]] == ["tmp"]


def test_common_labels_are_on_every_object_and_in_no_selector(template):
    manifests = template(*SETS["everything"])
    for each in manifests:
        if each["kind"] not in ("CustomResourceDefinition", "ConfigMap"):
            assert each["metadata"]["labels"]["cost-centre"] == "42", each["metadata"]["name"]
    (deployment,) = of_kind(manifests, "Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"]["cost-centre"] == "42"
    assert "cost-centre" not in deployment["spec"]["selector"]["matchLabels"]


def test_pod_settings_reach_the_operators_pod(template):
    pod = operator_pod(template(*SETS["everything"]))
    (container,) = pod["containers"]
    assert container["args"][-1] == "--identity=mine"
    assert pod["hostAliases"][0]["ip"] == "10.1.2.3"
    assert (pod["dnsPolicy"], pod["dnsConfig"]["nameservers"]) == ("None", ["10.0.0.10"])
    assert {"name": "notes", "emptyDir": {}} in pod["volumes"]
    assert {"name": "notes", "mountPath": "/notes"} in container["volumeMounts"]
    (deployment,) = of_kind(template(*SETS["everything"]), "Deployment")
    assert deployment["spec"]["revisionHistoryLimit"] == 1


def test_templates_of_users_follow_the_values(template):
    (container,) = operator_pod(template())["containers"]
    assert {"--no-template", "--template-host-access"}.isdisjoint(container["args"])
    flags = ("--set", "template.allowed=false", "--set", "template.hostAccess=true")
    (container,) = operator_pod(template(*flags))["containers"]
    assert {"--no-template", "--template-host-access"} <= set(container["args"])


def test_the_admission_policy_lets_templates_name_accounts_only_with_host_access(template):
    def policy(*flags):
        manifests = template("--set", ",".join(("admissionPolicy.enabled=true", *flags)))
        (found,) = of_kind(manifests, "ValidatingAdmissionPolicy")
        return json.dumps(found["spec"]["validations"])

    assert "serviceAccountName" in policy()
    assert "serviceAccountName" not in policy("template.hostAccess=true")


def test_trials_and_upgrades_of_engines_follow_the_values(template):
    (container,) = operator_pod(template())["containers"]
    assert "--upgrade-policy=Pinned" in container["args"]
    assert "--no-trials" not in container["args"]
    (container,) = operator_pod(template(*SETS["everything"]))["containers"]
    assert "--upgrade-policy=Roll" in container["args"]
    assert "--no-trials" in container["args"]


@pytest.mark.parametrize(
    ("flags", "kind"), [(SETS["default"], "ClusterRole"), (SETS["namespaced"], "Role")]
)
def test_the_operator_is_granted_exactly_what_it_uses(flags, kind, template):
    manifests = template(*flags)
    name = "release-specdecode-operator"
    roles = [each for each in of_kind(manifests, kind) if each["metadata"]["name"] == name]
    used = {}
    for each in kinds.ALL:
        used[each.group, each.plural] = set(each.verbs)
        if each.status_verbs:
            used[each.group, f"{each.plural}/status"] = set(each.status_verbs)
    assert roles
    for role in roles:
        granted: dict[tuple[str, str], set[str]] = {}
        for rule in role["rules"]:
            named = {("", "secrets"): [names.ROUTER_SECRET]}
            only = named.get((rule["apiGroups"][0], rule["resources"][0]))
            assert set(rule) - {"resourceNames"} == {"apiGroups", "resources", "verbs"}
            assert rule.get("resourceNames") == only
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    granted.setdefault((group, resource), set()).update(rule["verbs"])
        assert granted == used


def test_leases_are_granted_in_the_operators_namespace_and_only_its_own(template):
    for flags in (SETS["default"], SETS["namespaced"]):
        manifests = template(*flags)
        (role,) = (
            each
            for each in of_kind(manifests, "Role")
            if each["metadata"]["name"].endswith("-lease")
        )
        (operator,) = of_kind(manifests, "Deployment")
        arguments = operator["spec"]["template"]["spec"]["containers"][0]["args"]
        namespace, name = role["metadata"]["namespace"], role["rules"][1]["resourceNames"][0]
        assert f"--lease-namespace={namespace}" in arguments
        assert f"--lease-name={name}" in arguments
        granted = [verb for rule in role["rules"] for verb in rule["verbs"]]
        assert sorted(granted) == sorted(kinds.LEASE.verbs)
        assert all(rule["resources"] == [kinds.LEASE.plural] for rule in role["rules"])
        assert "resourceNames" not in role["rules"][0]  # a name cannot be asked of a create


def test_roles_are_bound_to_the_account_that_the_pod_uses(template):
    for flags in SETS.values():
        manifests = template(*flags)
        (deployment,) = of_kind(manifests, "Deployment")
        account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
        bound = [
            subject["name"]
            for each in of_kind(manifests, "ClusterRoleBinding") + of_kind(manifests, "RoleBinding")
            if "helm.sh/hook" not in each["metadata"].get("annotations", {})
            for subject in each["subjects"]
        ]
        assert set(bound) <= {account}


def test_watching_some_namespaces_grants_nothing_cluster_wide(template):
    manifests = template(*SETS["namespaced"])
    assert not [each for each in manifests if each["kind"].startswith("ClusterRole")]
    roles = [each for each in of_kind(manifests, "Role") if "annotations" not in each["metadata"]]
    others = [each for each in roles if not each["metadata"]["name"].endswith("-lease")]
    assert [each["metadata"]["namespace"] for each in others] == ["team-a", "team-b"]
    (deployment,) = of_kind(manifests, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"--namespace=team-a", "--namespace=team-b"} <= set(container["args"])
    assert "--all-namespaces" not in container["args"]


def test_the_program_knows_every_flag_that_the_chart_gives_it(template, capsys):
    from specdecode_operator.__main__ import _parser, _settings

    for flags in SETS.values():
        for spec in pod_specs(template(*flags)):
            for container in spec["containers"]:
                options = _parser().parse_args(container["args"])
                if container["args"][0] == "run":
                    settings = _settings(options)
                    assert (settings.health_port, settings.metrics_port) == (8080, 9090)
                    prefixes = ("specdecode-engine:", "registry.", "localhost:5000/")
                    assert settings.engine_image.startswith(prefixes)


def test_the_definitions_are_those_of_the_contract_and_kept_if_wanted(template):
    definitions = of_kind(template(), "CustomResourceDefinition")
    files = [
        f"{each['spec']['group']}_{each['spec']['names']['plural']}.yaml" for each in definitions
    ]
    assert files == DEFINITIONS
    for definition, file in zip(definitions, files, strict=True):
        annotations = definition["metadata"].pop("annotations")
        assert annotations == {"helm.sh/resource-policy": "keep"}
        assert definition == yaml.safe_load((ROOT / "crds" / file).read_text())
        kept = (CHART / "files" / "crds" / file).read_text()
        assert kept == (ROOT / "crds" / file).read_text()
    definitions = of_kind(template("--set", "crds.keep=false"), "CustomResourceDefinition")
    assert len(definitions) == len(DEFINITIONS)
    assert not any("annotations" in definition["metadata"] for definition in definitions)
    assert not of_kind(template("--set", "crds.install=false"), "CustomResourceDefinition")


def test_images_follow_the_versions(template):
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    for member in ("operator", "engine", "router"):
        project = tomllib.loads((ROOT / member / "pyproject.toml").read_text())
        assert project["project"]["version"] == chart["appVersion"]
    (deployment,) = of_kind(template(), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"specdecode-operator:{chart['appVersion']}"
    assert f"--engine-image=specdecode-engine:{chart['appVersion']}" in container["args"]
    assert f"--router-image=specdecode-router:{chart['appVersion']}" in container["args"]
    assert operator_images(template("--set", "image.tag=dev"))[0] == "specdecode-operator:dev"


def operator_images(manifests):
    """Image of the operator, the default image of engines, and the image of routers."""
    (container,) = operator_pod(manifests)["containers"]
    given = dict(each.split("=", 1) for each in container["args"] if "-image=" in each)
    return container["image"], given["--engine-image"], given["--router-image"]


VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.mark.parametrize(
    ("flags", "operator", "engine", "router"),
    [
        (
            "global.imageRegistry=mirror:5000/a,image.registry=x,engine.image.registry=y",
            f"mirror:5000/a/specdecode-operator:{VERSION}",
            f"mirror:5000/a/specdecode-engine:{VERSION}",
            f"mirror:5000/a/specdecode-router:{VERSION}",
        ),
        (
            "image.registry=ghcr.io/a,engine.image.registry=quay.io,engine.image.repository=b/e,"
            "router.image.registry=quay.io,router.image.repository=b/r",
            f"ghcr.io/a/specdecode-operator:{VERSION}",
            f"quay.io/b/e:{VERSION}",
            f"quay.io/b/r:{VERSION}",
        ),
        (
            f"image.digest={DIGEST},image.tag=dev,engine.image.digest={DIGEST},"
            f"router.image.digest={DIGEST}",
            f"specdecode-operator@{DIGEST}",
            f"specdecode-engine@{DIGEST}",
            f"specdecode-router@{DIGEST}",
        ),
    ],
    ids=["global registry", "registry each", "digests"],
)
def test_an_image_is_named_by_registry_repository_and_digest_or_tag(
    flags, operator, engine, router, template
):
    assert operator_images(template("--set", flags)) == (operator, engine, router)


@pytest.mark.parametrize("path", BAD.values(), ids=BAD)
def test_values_that_mean_nothing_are_refused_by_name(path, run, helm):
    first = path.read_text().splitlines()[0]
    assert first.startswith("# error: ")
    ran = run(helm, "template", "release", CHART, "--values", path, check=False)
    assert ran.returncode != 0
    assert first.removeprefix("# error: ") in ran.stderr
    (value,) = yaml.safe_load(path.read_text())
    assert value in ran.stderr, "which value it is about"


def test_the_values_of_a_parent_chart_are_tolerated(template):
    assert template("--set", "global.anything=1")


def test_schema_values_and_readme_name_the_same_values():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    elsewhere = {"$ref": "#/definitions/elsewhere"}
    table = (CHART / "templates" / "elsewhere.yaml").read_text()
    reported = {name for name, each in schema.items() if each == elsewhere}
    assert all(f'  "{name}" "' in table for name in reported)
    _assert_same_keys(
        values, {"properties": {n: s for n, s in schema.items() if n not in reported}}
    )
    assert chart_values.main(["--check"]) == 0


def _assert_same_keys(values, schema):
    """Every map of values names just what the schema does."""
    assert set(values) == set(schema["properties"])
    for name, value in values.items():
        if isinstance(value, dict) and value and "properties" in schema["properties"][name]:
            inner = schema["properties"][name]
            if name not in ("resources", "global"):
                _assert_same_keys(value, inner)


def test_the_notes_show_a_resource_that_the_contract_accepts(run, helm):
    from specdecode_operator.commands import render

    ran = run(helm, "install", "release", CHART, "--dry-run=client", "-n", "default")
    notes = ran.stdout[ran.stdout.index("NOTES:") :]
    start = notes.index("  apiVersion: specdecode.io")
    text = notes[start : notes.index("  EOF")]
    (resource,) = render.read("NOTES", "\n".join(line[2:] for line in text.splitlines()))
    assert resource.name == "chat"
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in notes


def test_the_built_in_roles_can_work_on_resources(template):
    found = {each["metadata"]["name"]: each for each in of_kind(template(), "ClusterRole")}
    view = found["release-specdecode-operator-view"]
    edit = found["release-specdecode-operator-edit"]
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    assert {f"{aggregate}{role}" for role in ("view", "edit", "admin")} <= set(
        view["metadata"]["labels"]
    )
    assert f"{aggregate}view" not in edit["metadata"]["labels"]
    verbs = {verb for rule in view["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}
    admin = found["release-specdecode-operator-admin"]["metadata"]["labels"]
    assert [label for label in admin if label.startswith(aggregate)] == [f"{aggregate}admin"]
