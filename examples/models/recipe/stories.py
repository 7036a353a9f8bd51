"""Short tales with a free hand in every sentence: the hard part of the text."""

from dataclasses import dataclass
from random import Random

from recipe import facts


@dataclass(frozen=True, slots=True)
class Tale:
    """A story and the words that a question may ask for."""

    hero: str
    friend: str
    find: str
    text: str


FINDS = (
    "a golden key",
    "an old map",
    "a silver bell",
    "a red lantern",
    "a broken boat",
    "a blue feather",
    "a small drum",
    "a round stone",
)
WEATHER = ("sunny", "rainy", "windy", "cold", "warm", "foggy")
FEELINGS = ("happy", "tired", "hungry", "lonely", "excited", "worried")
LESSONS = (
    "a good friend is worth more than gold",
    "it is wise to look before you leap",
    "a small step is still a step",
    "sharing makes every meal taste better",
    "asking for help is not a weakness",
)


def tell(rng: Random) -> Tale:
    """Make up a tale: who, where, what was found, and what was learnt."""
    hero, friend = rng.sample(facts.ANIMALS, 2)
    find = rng.choice(FINDS)
    weather, feeling = rng.choice(WEATHER), rng.choice(FEELINGS)
    opening = rng.choice(
        (
            f"Once upon a time there was a {hero.trait} {hero.name} who lived in {hero.home}.",
            f"Long ago a {hero.trait} {hero.name} lived in {hero.home}.",
            f"There was once a {hero.trait} {hero.name} in {hero.home}.",
        )
    )
    morning = rng.choice(
        (
            f"One {weather} morning the {hero.name} was {feeling} and went out to look for "
            f"{hero.food}.",
            f"On a {weather} day the {hero.name} felt {feeling} and wanted to eat {hero.food}.",
        )
    )
    meeting = rng.choice(
        (
            f"On the way the {hero.name} met a {friend.trait} {friend.name} from {friend.home}.",
            f"Soon a {friend.trait} {friend.name} came along the path.",
            f"Behind a tree sat a {friend.trait} {friend.name}.",
        )
    )
    talk = rng.choice(
        (
            f'"Where are you going?" asked the {friend.name}. "I am looking for {hero.food}," '
            f"said the {hero.name}.",
            f'"Good morning," said the {friend.name}. "Come with me," said the {hero.name}, "and '
            f'we will look for {hero.food}."',
        )
    )
    finding = rng.choice(
        (
            f"They walked together for a while, and under a bush they found {find}.",
            f"Near the water they found {find}, and nobody knew whose it was.",
        )
    )
    use = rng.choice(
        (
            f"The {friend.name} wanted to keep it, but the {hero.name} said that they should "
            f"share it.",
            f"The {hero.name} picked it up and gave it to the {friend.name} as a present.",
            f"They took it back to {hero.home} and showed it to everyone.",
        )
    )
    ending = (
        f"From that day on the {hero.name} and the {friend.name} were the best of friends, and "
        f"they learned that {rng.choice(LESSONS)}."
    )
    text = " ".join((opening, morning, meeting, talk, finding, use, ending))
    return Tale(hero=hero.name, friend=friend.name, find=find, text=text)
