"""The words of the trade that the models can explain."""

from typing import NamedTuple


class Resource(NamedTuple):
    """A kind of Kubernetes object and what it is for."""

    kind: str
    plural: str
    version: str
    purpose: str
    owner: str


RESOURCES = (
    Resource("Pod", "pods", "v1", "runs one or more containers together on a node", "the kubelet"),
    Resource(
        "Deployment",
        "deployments",
        "apps/v1",
        "keeps a number of equal pods running and rolls out new versions",
        "the deployment controller",
    ),
    Resource(
        "Service",
        "services",
        "v1",
        "gives a set of pods one stable name and address",
        "the endpoint controller",
    ),
    Resource(
        "ConfigMap",
        "configmaps",
        "v1",
        "holds settings as plain keys and values for pods to read",
        "the user",
    ),
    Resource("Secret", "secrets", "v1", "holds passwords, keys and certificates", "the user"),
    Resource(
        "StatefulSet",
        "statefulsets",
        "apps/v1",
        "runs pods that keep their own name and their own disk",
        "the statefulset controller",
    ),
    Resource(
        "DaemonSet",
        "daemonsets",
        "apps/v1",
        "runs one copy of a pod on every node",
        "the daemonset controller",
    ),
    Resource("Job", "jobs", "batch/v1", "runs a pod until its work is done", "the job controller"),
    Resource(
        "CronJob",
        "cronjobs",
        "batch/v1",
        "starts a job again and again on a schedule",
        "the cronjob controller",
    ),
    Resource(
        "Ingress",
        "ingresses",
        "networking.k8s.io/v1",
        "leads web requests from outside to a service",
        "the ingress controller",
    ),
    Resource("Namespace", "namespaces", "v1", "keeps the objects of one team apart", "the admin"),
    Resource("Node", "nodes", "v1", "is a machine that offers room for pods", "the kubelet"),
)

CONCEPTS = {
    "speculative decoding": (
        "Speculative decoding is a way to make a language model answer faster. A small draft model "
        "guesses the next few tokens, and the large target model checks all of them in one pass. "
        "Every guess that the target agrees with is kept, so one pass of the target can give "
        "several tokens. The answer is exactly the answer that the target alone would have given."
    ),
    "a draft model": (
        "A draft model is a small and quick model that guesses what the target model will say "
        "next. It may be wrong, because the target checks every guess before it is kept. A good "
        "draft model is much cheaper than the target and agrees with it most of the time."
    ),
    "a target model": (
        "A target model is the large model whose answers we want. In speculative decoding it does "
        "not write one token at a time. It checks several drafted tokens in one pass, keeps those "
        "that it agrees with and adds one token of its own."
    ),
    "the acceptance length": (
        "The acceptance length is the mean number of tokens that one pass of the target model "
        "gives. It counts the drafted tokens that were kept and the one token that the target adds "
        "itself. A longer acceptance length means fewer passes and a faster answer."
    ),
    "the acceptance rate": (
        "The acceptance rate is the share of drafted tokens that the target model keeps. When the "
        "rate is high it pays to draft more tokens. When the rate is low it is better to draft "
        "fewer tokens or none at all."
    ),
    "a token": (
        "A token is a small piece of text, such as a word or a part of a word. A language model "
        "reads tokens and writes tokens. The tokenizer turns text into tokens before the model "
        "runs, and turns tokens back into text afterwards."
    ),
    "a KV cache": (
        "A KV cache keeps the keys and values that the attention layers have already computed. "
        "Thanks to the cache the model does not read the whole text again for each new token. The "
        "cache is split into pages, so that many requests can share the memory of one device."
    ),
    "EAGLE": (
        "EAGLE is a draft method that looks at the hidden states of the target model. A head with "
        "only one layer reads these hidden states and guesses the next tokens. Because the head "
        "sees what the target is thinking, its guesses are often right."
    ),
    "an operator": (
        "An operator is a program that looks after other programs in a Kubernetes cluster. It "
        "reads a custom resource that says what the user wants. Then it compares the wish with the "
        "cluster, and changes the cluster until both are the same."
    ),
    "a custom resource": (
        "A custom resource is a kind of object that a user adds to Kubernetes. Its fields are "
        "described by a schema, and the API server stores it like any other object. An operator "
        "watches the custom resource and acts on every change."
    ),
    "a kernel": (
        "A kernel is a small program that runs on a graphics card. Many copies of it run at the "
        "same time, and each copy works on its own part of the data. A good kernel reads the "
        "memory once, keeps the numbers close and writes the result once."
    ),
    "continuous batching": (
        "Continuous batching means that requests join and leave the batch at every step. A short "
        "request does not wait for a long one to finish. This keeps the device busy and the "
        "waiting times short."
    ),
    "a prompt": (
        "A prompt is the text that a user gives to a language model. The model reads the whole "
        "prompt in one pass, and then it writes the answer token by token. A clear prompt makes a "
        "clear answer more likely."
    ),
    "a language model": (
        "A language model is a program that guesses the next token of a text. It learned from many "
        "examples which tokens tend to follow each other. By guessing again and again it can write "
        "whole sentences, answers and stories."
    ),
}

APPS = ("web", "api", "shop", "blog", "mail", "cache", "queue", "search", "login", "docs")
TEAMS = ("default", "dev", "test", "prod", "tools", "store")
IMAGES = ("nginx", "redis", "python", "busybox", "postgres")
