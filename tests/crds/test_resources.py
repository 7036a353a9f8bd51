"""Pydantic accepts the valid example resources and rejects the bad ones with the right error."""

import re

import pytest
from pydantic import ValidationError

from specdecode_api.boot import SpeculationBoot
from specdecode_api.descriptions import field_descriptions
from specdecode_api.schema import resource_schema
from specdecode_api.table import TableEntry
from specdecode_api.v1alpha1 import SpecDecodeDeployment
from specdecode_api.validation_errors import validation_errors


def test_good_resource_is_taken(good_case):
    SpecDecodeDeployment.from_resource(good_case.resource)


def test_good_resource_survives_a_round_trip(good_case):
    read = SpecDecodeDeployment.from_resource(good_case.resource)
    written = read.model_dump(by_alias=True, exclude_none=True, mode="json")
    assert SpecDecodeDeployment.from_resource(written) == read


def test_good_resource_makes_a_good_boot_file(good_case):
    speculation = SpecDecodeDeployment.from_resource(good_case.resource).spec.speculation
    SpeculationBoot(
        algorithm=speculation.algorithm,
        draft_path="/models/draft" if speculation.draft else None,
        topk=speculation.topk,
        num_steps=speculation.num_steps,
        num_draft_tokens=speculation.num_draft_tokens,
        policy=speculation.adaptive.engine_policy,
        table={
            key: TableEntry.model_validate(entry.model_dump(exclude={"from_"}))
            for key, entry in speculation.adaptive.table.items()
        },
    )


def test_bad_resource_is_refused_with_place_and_remedy(bad_case):
    with pytest.raises(ValidationError) as refusal:
        SpecDecodeDeployment.from_resource(bad_case.resource)
    sentences = validation_errors(refusal.value, SpecDecodeDeployment)
    place = bad_case.field or "document"
    dotted = [sentence.replace("[", ".").replace("]", "") for sentence in sentences]
    assert any(
        sentence.startswith(f"{place}: ") and bad_case.python in sentence for sentence in dotted
    ), sentences


def test_bad_resource_is_refused_for_one_reason(bad_case):
    with pytest.raises(ValidationError) as refusal:
        SpecDecodeDeployment.from_resource(bad_case.resource)
    assert len(validation_errors(refusal.value, SpecDecodeDeployment)) == 1


def test_every_rule_has_a_bad_resource(read_cases):
    """Each message of the CRD's rules is expected by a case above."""
    endings = re.compile("; (algorithm|numSteps) is")
    tested = [endings.split(case.message)[0] for case in read_cases("bad").values()]
    rules = [rule["message"] for row in field_descriptions(resource_schema()) for rule in row.rules]
    rules += [rule.message for rule in SpecDecodeDeployment.rules]
    assert [rule for rule in rules if not any(part and part in rule for part in tested)] == []
