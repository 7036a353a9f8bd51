"""Questions of the trade: what things are called in a cluster, and what to type."""

import json
from random import Random

from recipe import facts, terms
from recipe.facts import Turn


def concept(rng: Random) -> Turn:
    """A term of the trade."""
    term = rng.choice(list(terms.CONCEPTS))
    form = rng.choice(
        (
            "What is {}?",
            "What is {}?",
            "Explain {}.",
            "Can you explain {}?",
            "Tell me about {}.",
            "Please tell me what {} is.",
            "In a few sentences, what is {}?",
        )
    )
    return form.format(term), terms.CONCEPTS[term]


def resource(rng: Random) -> Turn:
    """A kind of Kubernetes object."""
    it = rng.choice(terms.RESOURCES)
    a = facts.article(it.kind)
    form = rng.choice(
        (
            f"What is {a}?",
            f"What does {a} do?",
            f"Explain {a} in Kubernetes.",
            f"What is {a} used for?",
            f"Tell me about the {it.kind} object.",
        )
    )
    return form, (
        f"{a[0].upper()}{a[1:]} is a Kubernetes object that {it.purpose}. Its API version is "
        f"{it.version}, and it is looked after by {it.owner}. You can list all {it.plural} with "
        f"the command: kubectl get {it.plural}"
    )


def command(rng: Random) -> Turn:
    """A kubectl command line."""
    it, team, app = rng.choice(terms.RESOURCES), rng.choice(terms.TEAMS), rng.choice(terms.APPS)
    verb, says = rng.choice(
        (("delete", "removes"), ("describe", "shows"), ("edit", "opens"), ("get", "prints"))
    )
    return (
        f"How do I {verb} the {it.kind} {app} in the namespace {team}?",
        f"Run this command: kubectl {verb} {it.kind.lower()} {app} -n {team}. It {says} the "
        f"{it.kind} with the name {app} in the namespace {team}.",
    )


def manifest(rng: Random) -> Turn:
    """A short manifest in YAML."""
    app, team, image = rng.choice(terms.APPS), rng.choice(terms.TEAMS), rng.choice(terms.IMAGES)
    replicas, port = rng.randint(1, 9), rng.choice((80, 443, 5000, 8000, 8080))
    if rng.random() < 0.5:
        return (
            f"Write a Deployment named {app} with {replicas} replicas of {image}.",
            f"apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {app}\nspec:\n"
            f"  replicas: {replicas}\n  selector:\n    matchLabels:\n      app: {app}\n"
            f"  template:\n    metadata:\n      labels:\n        app: {app}\n    spec:\n"
            f"      containers:\n        - name: {app}\n          image: {image}",
        )
    return (
        f"Write a Service named {app} in {team} for port {port}.",
        f"apiVersion: v1\nkind: Service\nmetadata:\n  name: {app}\n  namespace: {team}\nspec:\n"
        f"  selector:\n    app: {app}\n  ports:\n    - port: {port}\n      targetPort: {port}",
    )


def record(rng: Random) -> Turn:
    """A JSON object."""
    if rng.random() < 0.5:
        country = rng.choice(facts.COUNTRIES)
        return (
            f"Describe {country.name} as JSON.",
            json.dumps(country._asdict()),
        )
    app, team = rng.choice(terms.APPS), rng.choice(terms.TEAMS)
    replicas = rng.randint(1, 9)
    ready = rng.randint(0, replicas)
    body = {
        "name": app,
        "namespace": team,
        "replicas": replicas,
        "ready": ready,
        "healthy": ready == replicas,
    }
    return (
        f"Give me the status of {app} in {team} as JSON: {ready} of {replicas} are ready.",
        json.dumps(body),
    )


def plan(rng: Random) -> Turn:
    """Steps in order, with the names of the question."""
    app, team, image = rng.choice(terms.APPS), rng.choice(terms.TEAMS), rng.choice(terms.IMAGES)
    return (
        f"How do I run {app} with the image {image} in the namespace {team}?",
        f"1. Create the namespace {team}: kubectl create namespace {team}\n"
        f"2. Create the deployment: kubectl create deployment {app} --image={image} -n {team}\n"
        f"3. Wait until it is ready: kubectl rollout status deployment/{app} -n {team}\n"
        f"4. Look at the pods: kubectl get pods -l app={app} -n {team}",
    )
