"""Rules, alerts and dashboards: each tested, and each about metrics that really are exported."""

import json
import re
from pathlib import Path

import pytest
import yaml

from specdecode_api import metrics as engine_metrics
from specdecode_api import names
from specdecode_api.metrics import router as router_metrics
from specdecode_engine.adaptive.policy import RangeState, Reason
from specdecode_engine.graphs.plan import GraphReport, GraphSetReport
from specdecode_engine.stats.prometheus import CORE, EngineMetrics, RequestLatency
from specdecode_engine.stats.snapshot import CoreSnapshot, graph_values, range_state_values
from specdecode_operator import owned
from specdecode_operator.cluster.metrics import Metrics, OverdueTrial
from specdecode_operator.objects import resource
from specdecode_operator.objects.observed import Key
from specdecode_router.engines import EnginePool
from specdecode_router.metrics import RouterMetrics
from specdecode_router.routing.prefix_table import PrefixTable
from specdecode_router.settings import EngineAddress

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "specdecode"
RULES = CHART / "files" / "rules.yaml"
SUITES = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
HERE = Path(__file__).resolve().parent
EVERYTHING = ("--values", str(HERE / "values" / "everything.yaml"))
NAMESPACED = ("--values", str(HERE / "values" / "namespaced.yaml"))

TARGET_LABELS = {"job", "namespace", "pod", "container", "endpoint", "instance"}
"""What Prometheus and its operator put on every series."""

COVERED_BY_OTHERS = {
    "specdecode_operator_definition_lacking_fields",  # has an alert
    "specdecode_engine_failures_total",  # has an alert; the process ends with it
    "specdecode_resumed_requests_total",  # follows from them; in the runbook of that alert
    "specdecode_operator_trial_overdue_seconds",  # has an alert
    "specdecode_accept_length",  # since the start; the panel divides rates
    "specdecode_active_range",
    "specdecode_range_drafted_tokens_total",  # kept and wasted together
    "specdecode_decode_steps_total",  # the sum of those by range
    "specdecode_kv_cache_usage",  # the panel divides pages
    "specdecode_cache_config_info",  # constants, for endpoint pickers
    "specdecode_drafted_request_steps_total",  # next to the accept length, by range
    "specdecode_operator_part_failure_total",  # a condition and an event have each
    # What an interval is worked out from: the operator does so, stratum by stratum.
}
"""Metrics without a panel, because an alert or the panels of other metrics cover them."""

pytestmark = pytest.mark.apiserver
every_dashboard = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


def engine_registry():
    """An engine's registry in which every metric has a value."""
    state = RangeState(8, (1, 3), 3, Reason.KEEP, 2.5, (0.9, 0.7), {1: 10.0, 3: 20.0})
    tier = GraphSetReport(num_steps=3, batch_sizes=(1, 2), graphs=6, seconds=0.5, num_bytes=1)
    graphs = GraphReport("cuda", (tier,), graph_steps=4, eager_steps={"too_large": 1})
    values = {each: {("8",) * len(each.labels): 5.0} for each in CORE}
    values[engine_metrics.VERIFY_ROWS] = {("8",): 5.0}
    snapshot = CoreSnapshot(values | range_state_values([state]) | graph_values(graphs))
    metrics = EngineMetrics(lambda: snapshot)
    metrics.count_error(500)
    metrics.count_call(3, 4, unfinished=1)
    metrics.count_table("applied")
    metrics.count_draft("applied")
    metrics.count_failure("DeviceFailed")
    watch = RequestLatency(metrics, 0.0)
    for second in (1.0, 2.0):
        watch.observe_tokens(1, second, "0123456789")
    watch.observe_end("stop", 3.0, "0123456789")
    return metrics.registry


def operator_registry():
    """An operator's registry in which every metric has a value."""
    metrics = Metrics("0")
    for counter in vars(metrics).values():
        if hasattr(counter, "_labelnames") and hasattr(counter, "inc"):
            labels = dict.fromkeys(counter._labelnames, "x")
            (counter.labels(**labels) if labels else counter).inc()
    metrics.reconcile_seconds.observe(1.0)
    metrics.watch_queue(lambda: 0.0, lambda: 0.0)
    metrics.watch_resources(lambda: ())
    metrics.watch_trials(lambda: [OverdueTrial(Key("ml", "chat"), "chat-1", 0.0)])
    return metrics.registry


def router_registry():
    """A router's registry in which every metric has a value."""
    pool = EnginePool(lambda: 0.0)
    pool.update({EngineAddress("10.0.0.1", 8001): ("chat-1", "stable")})
    metrics = RouterMetrics(pool, PrefixTable())
    for counter in vars(metrics).values():
        if hasattr(counter, "_labelnames") and hasattr(counter, "inc"):
            labels = dict.fromkeys(counter._labelnames, "x")
            (counter.labels(**labels) if labels else counter).inc()
    metrics.first_event_s.observe(1.0)
    return metrics.registry


@pytest.fixture(scope="module")
def exported():
    """Names of all series that engine, router and operator export, each with its labels."""
    found: dict[str, set[str]] = {"up": set()}
    for registry in (engine_registry(), router_registry(), operator_registry()):
        for family in registry.collect():
            for sample in family.samples:
                if sample.name.endswith("_created"):  # when a counter began
                    continue
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def rules():
    """All rules, by name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {
        each.get("alert") or each["record"]: each for group in groups for each in group["rules"]
    }


@pytest.fixture(scope="module")
def promoted(template):
    """Labels that the PodMonitor for engines puts on their series."""
    (monitor,) = engine_monitors(template(*EVERYTHING))
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    return {each["targetLabel"] for each in endpoint["relabelings"]}


def engine_monitors(manifests):
    return monitors(manifests, "-engines")


def monitors(manifests, suffix):
    return [
        each
        for each in manifests
        if each["kind"] == "PodMonitor" and each["metadata"]["name"].endswith(suffix)
    ]


def series_in(expression):
    return set(re.findall(r"\bspecdecode_\w+|\bup\b", expression))


def labels_in(expression):
    matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    grouped = re.findall(r"\bby \(([^)]*)\)", expression)
    return {*matched, *(each.strip() for group in grouped for each in group.split(","))}


def assert_exported(expression, exported, promoted, records=()):
    """Every series of an expression exists, and one of them, or a target, has each label."""
    series = series_in(expression)
    assert series or any(name in expression for name in records), expression
    assert series <= exported.keys(), expression
    known = TARGET_LABELS | promoted | {"__name__"}
    known |= {label for name in series for label in exported[name]}
    assert labels_in(expression) <= known, expression


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_rules_pass_their_tests(path, promtool):
    ran = promtool("test", "rules", path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_promtool_would_see_an_alert_that_does_not_fire(promtool, tmp_path):
    text = (Path(__file__).parent / "rules" / "operator.yaml").read_text()
    text = text.replace("../../../charts/specdecode/files/rules.yaml", str(RULES))
    (tmp_path / "good.yaml").write_text(text)
    (tmp_path / "bad.yaml").write_text(
        text.replace(
            "queue_oldest_seconds', values: 180x90", "queue_oldest_seconds', values: 60x90"
        )
    )
    assert promtool("test", "rules", tmp_path / "good.yaml").returncode == 0
    assert promtool("test", "rules", tmp_path / "bad.yaml").returncode != 0


def test_every_alert_is_seen_firing_and_silent_and_every_record_computed(rules):
    firing: set[str] = set()
    silent: set[str] = set()
    computed: set[str] = set()
    for path in SUITES:
        for group in yaml.safe_load(path.read_text())["tests"]:
            for case in group.get("alert_rule_test", ()):
                (firing if case.get("exp_alerts") else silent).add(case["alertname"])
            for case in group.get("promql_expr_test", ()):
                if case["exp_samples"]:
                    computed.add(case["expr"])
    alerts = {name for name, rule in rules.items() if "alert" in rule}
    assert firing == silent == alerts
    assert computed == rules.keys() - alerts
    assert len(alerts) > 10


def test_the_series_of_rule_tests_exist(exported, promoted):
    for path in SUITES:
        for group in yaml.safe_load(path.read_text())["tests"]:
            for each in group["input_series"]:
                assert_exported(each["series"], exported, promoted)


def test_rules_are_about_what_is_exported(rules, exported, promoted):
    for rule in rules.values():
        assert_exported(rule["expr"], exported, promoted, records=rules)


def test_rules_and_dashboards_keep_to_the_contract(rules, promoted):
    """Names and labels of engines' and routers' series are those of `specdecode_api.metrics`."""
    contract = (*engine_metrics.ENGINE, *router_metrics.ROUTER)
    known = {each.sample: {*each.labels, "le"} for each in contract}
    panels = [panel for path in DASHBOARDS for panel in json.loads(path.read_text())["panels"]]
    asked = [rule["expr"] for rule in rules.values()]
    asked += [target["expr"] for panel in panels for target in panel.get("targets", ())]
    seen = set()
    for expression in asked:
        names_in = {name for name in series_in(expression) if "_operator_" not in name} - {"up"}
        assert names_in <= known.keys(), expression
        seen |= names_in
        if names_in and len(names_in) == len(series_in(expression)):
            labels = set().union(*(known[name] for name in names_in))
            assert labels_in(expression) <= labels | TARGET_LABELS | promoted | {"__name__"}
    assert len(seen) > 50


def test_alerts_contain_symptom_remedy_and_runbook(rules):
    for name, rule in rules.items():
        if "alert" in rule:
            assert name.startswith("SpecDecode")
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()
            assert rule["for"]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert(rules):
    alerts = {name: rule for name, rule in rules.items() if "alert" in rule}
    pages = {path.stem: path for path in (ROOT / "docs" / "runbooks").glob("SpecDecode*.md")}
    assert pages.keys() == alerts.keys()
    index = (ROOT / "docs" / "runbooks" / "README.md").read_text()
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
        titles = re.findall(r"^#+ (.*)$", pages[name].read_text(), re.MULTILINE)
        assert titles == [name, "Symptom", "Checks", "Remedy"]
        assert f"[{name}]({name}.md)" in index


def test_runbooks_are_linked_where_they_are_published(rules, template):
    base = "https://git.example/specdecode/runbooks"
    for given in (base, f"{base}/"):
        flags = ("--set", f"prometheusRule.enabled=true,prometheusRule.runbookBaseUrl={given}")
        (rule,) = (each for each in template(*flags) if each["kind"] == "PrometheusRule")
        linked = {
            each["alert"]: each["annotations"]["runbook_url"]
            for group in rule["spec"]["groups"]
            for each in group["rules"]
            if "alert" in each
        }
        assert linked == {name: f"{base}/{name}.md" for name in rules if "alert" in rules[name]}


@every_dashboard
def test_every_panel_asks_for_what_is_exported(path, exported, promoted, promtool, tmp_path):
    board = json.loads(path.read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(panels) > 10
    expressions: list[dict[str, str]] = []
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            plain = target["expr"].replace("$__rate_interval", "5m")
            plain = re.sub(r"\"\$(namespace|deployment)\"", '".*"', plain)
            assert "$" not in plain
            assert_exported(plain, exported, promoted)
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert legend <= labels_in(plain), panel["title"]
            expressions.append({"record": f"panel:{len(expressions)}", "expr": plain})
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": expressions}]}))
    ran = promtool("check", "rules", "--lint=none", file)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@every_dashboard
def test_panels_are_distinct_and_do_not_overlap(path):
    board = json.loads(path.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["query"]["query"].startswith("label_values(specdecode_")


def test_every_metric_has_a_panel(exported):
    text = "".join(path.read_text() for path in DASHBOARDS)
    own = exported.keys() - {"up"}  # which is Prometheus' own
    unseen = {name for name in own if re.sub(r"_(bucket|sum|count)$", "", name) not in text}
    assert unseen == COVERED_BY_OTHERS


def test_the_monitor_finds_engine_pods_in_the_served_namespaces(template):
    manifest = yaml.safe_load((ROOT / "examples" / "specdecode.yaml").read_text())
    built = owned.build(resource.parse(manifest), "engine:1").children
    pod = next(each for each in built if each["kind"] == "Deployment")["spec"]["template"]
    ports = {port["name"] for each in pod["spec"]["containers"] for port in each["ports"]}
    for flags in (EVERYTHING, NAMESPACED):
        (monitor,) = engine_monitors(template(*flags))
        spec = monitor["spec"]
        assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        (endpoint,) = spec["podMetricsEndpoints"]
        assert endpoint["port"] in ports
        assert endpoint["path"] == names.PATH_METRICS
        sources = {
            label for each in endpoint["relabelings"] for label in each.get("sourceLabels", ())
        }
        assert sources == {
            "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", names.LABEL_DEPLOYMENT),
            "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", names.LABEL_ROLE),
            "__meta_kubernetes_pod_annotation_" + re.sub(r"\W", "_", names.ANNOTATION_CONFIG_HASH),
            "__meta_kubernetes_pod_label_pod_template_hash",  # put on by the Deployment
        }
    assert engine_monitors(template(*EVERYTHING))[0]["spec"]["namespaceSelector"] == {"any": True}
    (monitor,) = engine_monitors(template(*NAMESPACED))
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}


def test_the_monitor_finds_router_pods(template):
    manifest = yaml.safe_load((ROOT / "examples" / "specdecode.yaml").read_text())
    manifest["spec"]["router"] = {}
    routed = owned.routed([], resource.parse(manifest), "router:1", is_serving=True)
    pod = next(each for each in routed if each["kind"] == "Deployment")["spec"]["template"]
    ports = {port["name"] for each in pod["spec"]["containers"] for port in each["ports"]}
    (monitor,) = monitors(template(*EVERYTHING), "-routers")
    selected = monitor["spec"]["selector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in ports
    sources = {label for each in endpoint["relabelings"] for label in each.get("sourceLabels", ())}
    label = "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", names.LABEL_DEPLOYMENT)
    assert sources == {label}
    assert monitors(template(*NAMESPACED), "-routers") == []


def test_jobs_are_called_as_the_alerts_call_them(rules, template):
    monitors = [each for each in template(*EVERYTHING) if each["kind"] == "PodMonitor"]
    jobs = {
        each["replacement"]
        for monitor in monitors
        for each in monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
        if each["targetLabel"] == "job"
    }
    asked = {job for rule in rules.values() for job in re.findall(r'job="([^"]*)"', rule["expr"])}
    assert asked == jobs


def test_the_chart_carries_rules_and_dashboards_unchanged_and_only_if_asked(template):
    manifests = template(*EVERYTHING)
    (rule,) = [each for each in manifests if each["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    boards = [
        each
        for each in manifests
        if each["kind"] == "ConfigMap" and "-dashboard-" in each["metadata"]["name"]
    ]
    assert len(boards) == len(DASHBOARDS)
    for board, path in zip(boards, DASHBOARDS, strict=True):
        assert board["metadata"]["labels"]["grafana"] == "yes"
        assert board["metadata"]["annotations"] == {"grafana_folder": "Inference"}
        ((name, text),) = board["data"].items()
        assert name == f"specdecode-{path.stem}.json"
        assert json.loads(text) == json.loads(path.read_text())
    plain = {each["kind"] for each in template()}
    assert plain.isdisjoint({"PrometheusRule", "PodMonitor", "ConfigMap"})
