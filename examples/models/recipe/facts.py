"""The small world that the tiny models know: plain tables, written for this project."""

from typing import NamedTuple


class Animal(NamedTuple):
    """An animal as the stories and the answers speak of it."""

    name: str
    food: str
    home: str
    trait: str
    legs: int


class Country(NamedTuple):
    """A country with the three things that are asked about it."""

    name: str
    capital: str
    continent: str
    language: str


class Resource(NamedTuple):
    """A kind of Kubernetes object and what it is for."""

    kind: str
    plural: str
    version: str
    purpose: str
    owner: str


ANIMALS = (
    Animal("fox", "berries and mice", "the forest", "clever", 4),
    Animal("bear", "honey and fish", "the mountains", "strong", 4),
    Animal("rabbit", "grass and carrots", "the meadow", "quick", 4),
    Animal("owl", "mice and beetles", "the old barn", "wise", 2),
    Animal("frog", "flies and worms", "the pond", "cheerful", 4),
    Animal("duck", "seeds and snails", "the lake", "friendly", 2),
    Animal("horse", "hay and oats", "the valley", "proud", 4),
    Animal("cat", "fish and milk", "the village", "curious", 4),
    Animal("dog", "meat and bones", "the farm", "loyal", 4),
    Animal("mouse", "cheese and grain", "the cellar", "careful", 4),
    Animal("squirrel", "nuts and acorns", "the oak tree", "busy", 4),
    Animal("turtle", "leaves and fruit", "the beach", "patient", 4),
    Animal("goat", "herbs and leaves", "the hills", "stubborn", 4),
    Animal("hen", "corn and worms", "the garden", "gentle", 2),
    Animal("wolf", "deer and hares", "the north", "brave", 4),
    Animal("otter", "fish and crabs", "the river", "playful", 4),
    Animal("camel", "thorns and dates", "the desert", "calm", 4),
    Animal("penguin", "fish and squid", "the ice", "funny", 2),
    Animal("beetle", "bark and roots", "the hedge", "tiny", 6),
    Animal("spider", "flies and moths", "the attic", "quiet", 8),
)

COUNTRIES = (
    Country("France", "Paris", "Europe", "French"),
    Country("Germany", "Berlin", "Europe", "German"),
    Country("Italy", "Rome", "Europe", "Italian"),
    Country("Spain", "Madrid", "Europe", "Spanish"),
    Country("Portugal", "Lisbon", "Europe", "Portuguese"),
    Country("Greece", "Athens", "Europe", "Greek"),
    Country("Poland", "Warsaw", "Europe", "Polish"),
    Country("Norway", "Oslo", "Europe", "Norwegian"),
    Country("Sweden", "Stockholm", "Europe", "Swedish"),
    Country("Finland", "Helsinki", "Europe", "Finnish"),
    Country("Hungary", "Budapest", "Europe", "Hungarian"),
    Country("Japan", "Tokyo", "Asia", "Japanese"),
    Country("China", "Beijing", "Asia", "Chinese"),
    Country("Thailand", "Bangkok", "Asia", "Thai"),
    Country("Vietnam", "Hanoi", "Asia", "Vietnamese"),
    Country("Mongolia", "Ulaanbaatar", "Asia", "Mongolian"),
    Country("Egypt", "Cairo", "Africa", "Arabic"),
    Country("Kenya", "Nairobi", "Africa", "Swahili"),
    Country("Ethiopia", "Addis Ababa", "Africa", "Amharic"),
    Country("Brazil", "Brasilia", "South America", "Portuguese"),
    Country("Argentina", "Buenos Aires", "South America", "Spanish"),
    Country("Peru", "Lima", "South America", "Spanish"),
    Country("Cuba", "Havana", "North America", "Spanish"),
    Country("Mexico", "Mexico City", "North America", "Spanish"),
)

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

MIXES = {
    ("red", "yellow"): "orange",
    ("blue", "yellow"): "green",
    ("blue", "red"): "purple",
    ("black", "white"): "grey",
    ("red", "white"): "pink",
}

COLOURED = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "a lemon": "yellow",
    "a ripe tomato": "red",
    "coal": "black",
    "a carrot": "orange",
    "an elephant": "grey",
    "chocolate": "brown",
    "a flamingo": "pink",
}

LISTS = {
    "fruits": ("apple", "banana", "cherry", "grape", "lemon", "mango", "orange", "pear"),
    "colours": ("black", "blue", "brown", "green", "pink", "red", "white", "yellow"),
    "tools": ("axe", "drill", "hammer", "knife", "ladder", "nail", "rope", "saw"),
    "animals": ("bear", "cat", "dog", "fox", "goat", "hen", "otter", "wolf"),
    "planets": ("Earth", "Jupiter", "Mars", "Mercury", "Neptune", "Saturn", "Uranus", "Venus"),
}

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jonas")
THINGS = ("apples", "books", "coins", "pens", "eggs", "stones", "cards", "shells")
APPS = ("web", "api", "shop", "blog", "mail", "cache", "queue", "search", "login", "docs")
TEAMS = ("default", "dev", "test", "prod", "tools", "store")
IMAGES = ("nginx", "redis", "python", "busybox", "postgres")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def spell(number: int) -> str:
    """Spell a number from 0 to 99 in English words."""
    if number < 20:
        return _UNITS[number]
    tens, unit = divmod(number, 10)
    return _TENS[tens - 2] + (f"-{_UNITS[unit]}" if unit else "")
