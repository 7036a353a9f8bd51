"""The small world that the tiny models know: plain tables, written for this project."""

from typing import NamedTuple

Turn = tuple[str, str]  # a question and its answer


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
    Animal("penguin", "fish and squid", "the snow", "funny", 2),
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


def article(noun: str) -> str:
    """Put "a" or "an" before a noun."""
    return f"an {noun}" if noun[0].lower() in "aeiou" else f"a {noun}"
