"""The speculation table: every form is read, and all mistakes are reported together."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_api.speculation import DEFAULT_STEPS, MAX_CANDIDATES, Algorithm, Policy
from specdecode_api.table import (
    SpeculationTable,
    TableEntry,
    TableError,
    candidates,
    default_table,
    read_table,
    resource_table_warnings,
    table_warnings,
)
from specdecode_api.v1alpha1 import Adaptive, BatchSizeEntry

REFERENCE = {
    "strategy": "ema",
    "ema_alpha": 0.3,
    "warmup_batches": 2,
    "1": {"candidate_steps": [1, 3, 7], "down_hysteresis": -0.5},
    "32": {"candidate_steps": [0]},
    "8": {"candidate_steps": [3, 1], "ema_alpha": 1},
}
BATCH_SIZES: list[dict[str, object]] = [
    {"from": 1, "candidateSteps": [1, 3, 7], "downHysteresis": -0.5},
    {"from": 32, "candidateSteps": [0]},
    {"from": 8, "candidateSteps": [3, 1], "emaAlpha": 1},
]
RESOURCE = {
    "policy": "Ema",
    "emaAlpha": 0.3,
    "warmupBatches": 2,
    "batchSizes": BATCH_SIZES,
}


def without_from(entry: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in entry.items() if name != "from"}


def mistakes(document: object, num_steps: int | None = None) -> tuple[str, ...]:
    with pytest.raises(TableError) as refusal:
        read_table(document, Policy.EMA, num_steps)
    assert str(refusal.value) == "\n".join(refusal.value.mistakes)
    return refusal.value.mistakes


def test_defaults_are_merged_under_every_entry_and_an_entry_wins():
    entries = read_table(REFERENCE, Policy.EMA).entries
    assert list(entries) == ["1", "8", "32"], "ascending as numbers"
    assert entries["1"] == TableEntry(
        candidate_steps=(1, 3, 7), down_hysteresis=-0.5, ema_alpha=0.3, warmup_batches=2
    )
    assert entries["8"].ema_alpha == 1
    assert entries["32"].down_hysteresis == -0.25, "not set anywhere: the field's own default"


def test_candidates_may_be_a_default_too():
    entries = read_table(
        {"candidate_steps": [1, 3], "1": {}, "8": {"candidate_steps": [0]}}, Policy.EMA
    )
    assert [entry.candidate_steps for entry in entries.entries.values()] == [(1, 3), (0,)]


@pytest.mark.parametrize(
    "document",
    [
        RESOURCE,
        {
            **{str(entry["from"]): without_from(entry) for entry in BATCH_SIZES},
            "emaAlpha": 0.3,
            "warmupBatches": 2,
            "strategy": "ema",
        },
    ],
    ids=["nested", "flat"],
)
def test_the_resources_spelling_means_the_same(document):
    assert read_table(document, Policy.EMA) == read_table(REFERENCE, Policy.EMA)


def test_what_the_resource_takes_is_read():
    spoken = Adaptive.from_resource({"policy": "Goodput", "batchSizes": BATCH_SIZES}).model_dump(
        by_alias=True, mode="json"
    )
    read = read_table(spoken, Policy.GOODPUT)
    assert read.policy is Policy.GOODPUT
    assert {key: entry.model_dump(mode="json") for key, entry in read.entries.items()} == {
        str(entry["from"]): BatchSizeEntry.from_resource(entry).model_dump(exclude={"from_"})
        for entry in BATCH_SIZES
    }


def test_candidate_steps_at_the_bounds_are_read():
    everything = {"999999": {"candidate_steps": list(range(MAX_CANDIDATES))}}
    assert read_table(everything, Policy.GOODPUT, 16).entries.keys() == {"999999"}


STEPS = {"candidate_steps": [1]}
BAD: dict[str, tuple[object, tuple[str, ...]]] = {
    "a list": ([], ("document: must be an object such as {", "; got []")),
    "null": (None, ("document: must be an object", "got null")),
    "empty": ({}, ('document: has no batch size as a key: add one, such as "1"',)),
    "only a strategy": ({"strategy": "ema"}, ("document: has no batch size", "['strategy']")),
    "no entry in batchSizes": (
        {"batchSizes": []},
        ("batchSizes: has no entry: add one, such as", '{"from": 1, "candidateSteps": [0, 1, 3]}'),
    ),
    "map in batchSizes": (
        {"batchSizes": {"1": {"candidateSteps": [1]}}},
        ('batchSizes: must be a list of entries such as [{"from": 1, "candidateSteps"',),
    ),
    "entry is a list": (
        {"1": [1, 3]},
        ('1: an entry is an object: write {"candidate_steps": [1, 3]}; got [1, 3]',),
    ),
    "entry is a number": ({"1": 3}, ("1: an entry is an object: write {", "; got 3")),
    "entry is null": ({"batchSizes": [None]}, ("batchSizes[0]: an entry is an object",)),
    "no candidates": ({"1": {}}, ("1.candidate_steps: is required: add it",)),
    "no candidates, camel": (
        {"batchSizes": [{"from": 8}]},
        ("batchSizes[0].candidateSteps: is req",),
    ),
    "not a list": ({"1": {"candidate_steps": 3}}, ("1.candidate_steps: ", "a valid list; got 3")),
    "text": ({"1": {"candidate_steps": "1,3"}}, ("1.candidate_steps: ", "list; got '1,3'")),
    "empty list": ({"1": {"candidate_steps": []}}, ("1.candidate_steps: ", "at least 1 item")),
    "negative": ({"1": {"candidate_steps": [1, -1]}}, ("1.candidate_steps[1]: ", "0; got -1")),
    "too deep": ({"1": {"candidate_steps": [17]}}, ("1.candidate_steps[0]: ", "16; got 17")),
    "true": ({"1": {"candidate_steps": [True]}}, ("1.candidate_steps[0]: ", "integer; got True")),
    "float": ({"1": {"candidate_steps": [1.0]}}, ("1.candidate_steps[0]: ", "got 1.0")),
    "digits": ({"1": {"candidate_steps": ["1"]}}, ("1.candidate_steps[0]: ", "got '1'")),
    "a list in it": ({"1": {"candidate_steps": [[1]]}}, ("1.candidate_steps[0]: ", "got [1]")),
    "repeated": (
        {"1": {"candidate_steps": [3, 1, 3]}},
        ("1.candidate_steps: every value may occur once: remove the repeated [3]",),
    ),
    "alpha 0": ({"1": {**STEPS, "ema_alpha": 0}}, ("1.ema_alpha: ", "greater than 0; got 0")),
    "alpha": ({"1": {**STEPS, "ema_alpha": 1.1}}, ("1.ema_alpha: ", "equal to 1; got 1.1")),
    "alpha true": ({"1": {**STEPS, "ema_alpha": True}}, ("1.ema_alpha: ", "got True")),
    "alpha text": ({"1": {**STEPS, "ema_alpha": "0.2"}}, ("1.ema_alpha: ", "got '0.2'")),
    "alpha null": ({"1": {**STEPS, "ema_alpha": None}}, ("1.ema_alpha: ", "got null")),
    "alpha nan": ({"1": {**STEPS, "ema_alpha": float("nan")}}, ("1.ema_alpha: ", "got nan")),
    "interval": ({"1": {**STEPS, "update_interval": 0}}, ("1.update_interval: ", "1; got 0")),
    "interval 2.5": ({"1": {**STEPS, "update_interval": 2.5}}, ("1.update_interval: ", "2.5")),
    "warm-up": ({"1": {**STEPS, "warmup_batches": -1}}, ("1.warmup_batches: ", "0; got -1")),
    "hysteresis": ({"1": {**STEPS, "up_hysteresis": 17}}, ("1.up_hysteresis: ", "16; got 17")),
    "other": ({"1": {**STEPS, "down_hysteresis": "x"}}, ("1.down_hysteresis: ", "got 'x'")),
    "ceiling": ({"1": {**STEPS, "ceiling_coeff": -1}}, ("1.ceiling_coeff: ", "0; got -1")),
    "typo": (
        {"1": {**STEPS, "ema_alfa": 1}},
        ("1.ema_alfa: no such field; did you mean ema_alpha?",),
    ),
    "typo, camel": (
        {"1": {"candidateSteps": [1], "emaAlfa": 1}},
        ("1.emaAlfa: no such field; did you mean emaAlpha?",),
    ),
    "an objective": (
        {"objective": "InterTokenLatency", "batchSizes": BATCH_SIZES},
        ("objective: does not belong to a table: use speculation.objective and speculation.max",),
    ),
    "unlike anything": ({"1": {**STEPS, "x": 1}}, ("1.x: no such field; remove it, or use one",)),
    "typo of a default": (
        {"1": STEPS, "update_intervall": 3},
        ("update_intervall: no such field; did you mean update_interval?",),
    ),
    "typo of the strategy": (
        {"1": STEPS, "stratagy": "ema"},
        ("stratagy: no such field; did you mean strategy?",),
    ),
    "bad default is reported once": (
        {"1": STEPS, "2": STEPS, "ema_alpha": 2},
        ("ema_alpha: input should be less than or equal to 1; got 2",),
    ),
    "bad candidates for all": (
        {"1": {}, "2": {}, "candidate_steps": [-1]},
        ("candidate_steps[0]: ", "got -1"),
    ),
    "both spellings": (
        {"1": {**STEPS, "candidateSteps": [3]}},
        ("1.candidateSteps: is given in both spellings: keep one",),
    ),
    "key 0": ({"0": STEPS}, ("0: a batch size is a whole number from 1", "rename the key; got")),
    "leading zero": ({"08": STEPS}, ("08: a batch size is", "leading zeros: write 8; got '08'")),
    "too large": ({"1000000": STEPS}, ("1000000: a batch size is", "to 999999")),
    "range": ({"8-16": STEPS}, ("8-16: a batch size is", "rename the key; got '8-16'")),
    "minus": ({"-1": STEPS}, ("-1: a batch size is",)),
    "other digits": ({"٣": STEPS}, ("٣: a batch size is",)),
    "word as a bound": (
        {"batchSizes": [{"from": "8", "candidateSteps": [1]}]},
        ("batchSizes[0].from: must be a whole number from 1 to 999999; got '8'",),
    ),
    "no bound": (
        {"batchSizes": [{"candidateSteps": [1]}]},
        ("batchSizes[0].from: is required: add it",),
    ),
    "bound twice": (
        {"batchSizes": [{"from": 8, "candidateSteps": [1]}] * 2},
        ("batchSizes[1].from: occurs twice: keep one of the entries; got 8",),
    ),
    "next to it": (
        {"batchSizes": [{"from": 1, "candidateSteps": [1]}], "2": STEPS},
        ("2: is next to batchSizes: move",),
    ),
    "strategy": ({"1": STEPS, "strategy": "EMA"}, ("strategy: must be one of ", "got 'EMA'")),
    "strategy list": ({"1": STEPS, "strategy": ["ema"]}, ("strategy: must be one of ",)),
    "two policies": (
        {"1": STEPS, "strategy": "ema", "policy": "goodput"},
        ("policy: contradicts strategy: keep one of the two; got 'goodput'",),
    ),
    "key with a line": ({"1": STEPS, "a\nb": 1}, ("a\\nb: no such field",)),
    "too many": (
        {str(bound): STEPS for bound in range(1, 34)},
        ("document: takes at most 32 batch sizes: remove some; got 33",),
    ),
}


@pytest.mark.parametrize(("document", "parts"), BAD.values(), ids=BAD)
def test_a_mistake_is_reported_with_place_value_and_remedy(document, parts):
    (warning,) = mistakes(document)
    assert warning.startswith(parts[0])
    assert all(part in warning for part in parts), warning


def test_every_mistake_is_reported_at_once():
    warning = mistakes(
        {
            "candidate_steps": [1, 3],
            "warmup_batches": -1,
            "update_intervall": 3,
            "strategy": "fast",
            "0": {},
            "1": {"ema_alpha": 0, "up_hysteresis": "x"},
            "8": {"candidate_steps": [1, 17, True], "emaalpha": 1},
            "64": 3,
        }
    )
    assert [sentence.partition(": ")[0] for sentence in warning] == [
        *("update_intervall", "strategy", "warmup_batches"),
        *("0", "1.up_hysteresis", "1.ema_alpha"),
        *("8.emaalpha", "8.candidate_steps[1]", "8.candidate_steps[2]", "64"),
    ]


@pytest.mark.parametrize(
    ("flat", "rewritten"),
    [
        ({"candidate_steps": [1, 3, 7]}, {"1": {"candidate_steps": [1, 3, 7]}}),
        (
            {"candidate_steps": [1, 3], "ema_alpha": 0.3, "strategy": "ema"},
            {"strategy": "ema", "1": {"candidate_steps": [1, 3], "ema_alpha": 0.3}},
        ),
        (
            {"candidateSteps": [0, 2], "warmupBatches": 1},
            {"1": {"candidateSteps": [0, 2], "warmupBatches": 1}},
        ),
    ],
)
def test_a_table_of_before_batch_sizes_is_shown_rewritten(flat, rewritten):
    (warning,) = mistakes(flat)
    assert warning.startswith(
        "document: draft steps are chosen by batch size, and no key is a batch size: "
    )
    pasted = json.loads(warning.partition(": write ")[2])
    assert pasted == rewritten
    entry = read_table(pasted, Policy.EMA).entries["1"]
    assert list(entry.candidate_steps) == next(iter(flat.values()))


def test_a_start_in_no_entry_is_refused_with_those_there_are():
    table = {"1": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [0, 1]}}
    warning = "num_steps 2 is in no entry of the table: use one of [0, 1, 3]"
    assert mistakes(table, num_steps=2) == (warning,)
    assert read_table(table, Policy.STATIC, 0).entries
    broken = {**table, "1": {"candidate_steps": [1, 3], "ema_alpha": 0}}
    assert mistakes(broken, num_steps=2)[1:] == (warning,), "with other mistakes"
    unreadable = {**table, "1": {"candidate_steps": "2"}}
    assert len(mistakes(unreadable, num_steps=2)) == 1, "2 may have been meant there"


def test_a_file_may_ask_for_a_policy():
    table = {"1": {"candidate_steps": [1, 3]}}
    assert read_table(table, Policy.GOODPUT) == SpeculationTable(
        {"1": TableEntry(candidate_steps=(1, 3))}
    )
    asked = read_table({**table, "strategy": "ema"}, Policy.GOODPUT)
    assert asked.policy is Policy.EMA
    assert asked.warnings == ("strategy: names policy ema, but policy goodput is in use",)
    theirs = read_table({**table, "strategy": "throughput_aware"}, Policy.GOODPUT)
    assert theirs.policy is Policy.GOODPUT
    (warning,) = theirs.warnings
    assert warning.startswith("strategy: throughput_aware is read as policy goodput")


def warnings_of(steps: list[int], policy: Policy = Policy.EMA, **fields: float) -> tuple[str, ...]:
    return read_table({"4": {"candidate_steps": steps, **fields}}, policy).warnings


def test_candidate_steps_without_a_margin_between_them_are_warned_of_under_ema():
    (warning,) = warnings_of([1, 3], down_hysteresis=0.0)
    assert warning == (
        "4: num_steps 1 rises to 3 above 0.5 accepted tokens, and 3 falls back at 0.5: the policy "
        "oscillates; lower down_hysteresis 0 below up_hysteresis 0"
    )
    assert len(warnings_of([1, 3, 5], up_hysteresis=-0.3)) == 2
    assert warnings_of([1, 3, 5, 7]) == warnings_of([5], down_hysteresis=1.0) == ()
    assert warnings_of([1, 3], Policy.GOODPUT, down_hysteresis=0.0) == ()
    assert warnings_of([1, 3], Policy.STATIC, down_hysteresis=0.0) == ()


def test_draft_steps_above_plain_decoding_that_are_never_kept_are_warned_of():
    margin, kept = warnings_of([0, 1, 3], down_hysteresis=0.0)
    assert margin.startswith("4: num_steps 1 rises to 3")
    assert kept.startswith(
        "4: num_steps 1 falls to 0 at 0.5 accepted tokens and rises to 3 above 0.5"
    )
    assert warnings_of([0, 1, 3]) == warnings_of([0, 1], down_hysteresis=0.0) == ()


def test_a_ceiling_that_takes_back_a_rise_is_doubted():
    (first, second) = warnings_of([1, 3, 7], ceiling_coeff=1)
    assert "num_steps 1 rises to 3 above 0.5 accepted tokens, where ceiling_coeff 1 caps" in first
    assert first.endswith("at 1: the policy oscillates; raise ceiling_coeff to 4 or set it to 0")
    assert second.endswith("at 3: the policy oscillates; raise ceiling_coeff to 2.4 or set it to 0")
    assert warnings_of([1, 3, 7], ceiling_coeff=4) == warnings_of([3], ceiling_coeff=0.1) == ()
    (low,) = warnings_of([1, 3], ceiling_coeff=16, up_hysteresis=-0.7, down_hysteresis=-1)
    assert low.endswith("set it to 0")
    assert "raise ceiling_coeff" not in low


def test_warnings_of_a_resource_have_its_names_and_its_place():
    entry = TableEntry(candidate_steps=(1, 3), up_hysteresis=-1.0, down_hysteresis=1.0)
    (warning,) = resource_table_warnings({"8": entry}, Policy.EMA)
    assert warning == (
        "speculation.adaptive.batchSizes from 8: numSteps 1 rises to 3 above -0.5 accepted tokens, "
        "and 3 falls back at 1.5: the policy oscillates; lower downHysteresis 1 below upHysteresis "
        "-1"
    )
    assert resource_table_warnings({"8": entry}, Policy.GOODPUT) == ()


def test_the_default_of_ema_has_the_doubts_of_its_source():
    assert {
        warning.partition(":")[0]
        for warning in table_warnings(default_table(Policy.EMA), Policy.EMA)
    } == {"8"}
    assert table_warnings(default_table(Policy.GOODPUT), Policy.GOODPUT) == ()


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("policy", [Policy.EMA, Policy.GOODPUT])
def test_a_default_table_is_one_that_can_be_read(policy, algorithm):
    table = default_table(policy, algorithm.most_default_steps)
    assert DEFAULT_STEPS in candidates(table), "the rules of the resource count on it"
    written = {key: entry.model_dump(mode="json") for key, entry in table.items()}
    assert read_table(json.loads(json.dumps(written)), policy).entries == table
    assert default_table(Policy.STATIC) == {}


@pytest.mark.parametrize(
    ("most", "goodput", "ema"),
    [
        (1, (0, 1), (1,)),
        (3, (0, 1, 2, 3), (1, 3)),
        (7, (0, 1, 2, 3, 5, 7), (1, 3, 5, 7)),
        (9, (0, 1, 2, 3, 5, 7, 9), (1, 3, 5, 7, 9)),
        (15, (0, 1, 2, 3, 5, 7, 11, 15), (1, 3, 5, 7, 11, 15)),
    ],
)
def test_a_default_table_ends_at_the_most_draft_steps(most, goodput, ema):
    assert default_table(Policy.GOODPUT, most)["1"].candidate_steps == goodput
    assert default_table(Policy.EMA, most)["1"].candidate_steps == ema
    assert all(
        max(entry.candidate_steps) <= most for entry in default_table(Policy.EMA, most).values()
    )


NAMES = [
    *TableEntry.model_fields,
    "from",
    "candidateSteps",
    "emaAlpha",
    "strategy",
    "policy",
    "batchSizes",
]
KEYS = st.sampled_from([*NAMES, "1", "8", "0", "08", "999999", "x", ""]) | st.text(max_size=3)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 16)
    | st.floats()
    | st.sampled_from(["ema", "goodput", "throughput_aware"])
    | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(VALUES | st.dictionaries(KEYS, VALUES), st.sampled_from(Policy), st.none() | st.integers())
def test_any_json_is_read_or_refused(document, policy, num_steps):
    read = None
    warning: tuple[str, ...] = ()
    try:
        read = read_table(document, policy, num_steps)
    except TableError as error:
        warning = error.mistakes
    assert (read is None) == bool(warning)
    assert all(sentence and sentence.isprintable() for sentence in warning)
    if read is not None:
        assert read.entries
        assert num_steps is None or num_steps in candidates(read.entries)


def test_entries_with_a_rejected_bound_are_checked_too():
    entries = [
        {"from": -1, "candidateSteps": [-1]},
        {"from": 1, "candidateSteps": [1]},
        {"from": 1, "candidateSteps": "1", "emaAlpha": 0},
    ]
    found = [sentence.partition(": ")[0] for sentence in mistakes({"batchSizes": entries})]
    assert found == [
        *("batchSizes[0].from", "batchSizes[2].from", "batchSizes[0].candidateSteps[0]"),
        *("batchSizes[2].candidateSteps", "batchSizes[2].emaAlpha"),
    ]


ENTRIES = st.fixed_dictionaries(
    {"candidate_steps": st.lists(st.integers(0, 16), min_size=1, unique=True)},
    optional={"ema_alpha": st.floats(0.01, 1), "ceiling_coeff": st.floats(0, 16)},
)


@given(st.dictionaries(st.integers(1, 999_999).map(str), ENTRIES, min_size=1, max_size=5))
def test_any_right_table_is_read_as_it_is(table):
    read = read_table(table, Policy.EMA)
    assert read.entries == {key: TableEntry(**entry) for key, entry in table.items()}
    assert list(map(int, read.entries)) == sorted(map(int, table))
