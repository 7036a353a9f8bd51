"""Environment variables that a user gives to the containers of the engine's image."""

from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from specdecode_api import names
from specdecode_api.base import ResourceRecord
from specdecode_api.rules import Checked, Rule
from specdecode_api.v1alpha1.scalars import ObjectName, SecretKey, VariableName

OPERATORS_VARIABLES: Final = (
    "HOME",
    "HF_ENDPOINT",
    "HF_HUB_DISABLE_TELEMETRY",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "OMP_NUM_THREADS",
    names.VARIABLE_TERMINATION_MESSAGE_PATH,
)


class KeyReference(ResourceRecord):
    """A key of a Secret or ConfigMap of the same namespace."""

    name: ObjectName = Field(description="Name of the object.")
    key: SecretKey = Field(description="Key in it.")


class FieldReference(ResourceRecord):
    """A field of the pod."""

    field_path: Annotated[str, StringConstraints(min_length=1, max_length=256)] = Field(
        description="Path of the field, such as status.podIP."
    )


class VariableSource(ResourceRecord):
    """Where the value of a variable comes from. Only the pods read it, never the operator."""

    secret_key_ref: KeyReference | None = Field(default=None, description="Key of a Secret.")
    config_map_key_ref: KeyReference | None = Field(default=None, description="Key of a ConfigMap.")
    field_ref: FieldReference | None = Field(default=None, description="Field of the pod.")

    rules: ClassVar[tuple["Rule[VariableSource]", ...]] = (
        Rule(
            cel="[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)]"
            ".filter(is, is).size() == 1",
            holds=lambda it: (
                [it.secret_key_ref, it.config_map_key_ref, it.field_ref].count(None) == 2
            ),
            message="valueFrom names one source: keep one of secretKeyRef, configMapKeyRef and "
            "fieldRef",
        ),
    )


class Variable(ResourceRecord):
    """An environment variable."""

    name: VariableName = Field(description="Name of the variable.")
    value: Annotated[str, StringConstraints(max_length=8192)] | None = Field(
        default=None, description="Its value; empty where absent."
    )
    value_from: VariableSource | None = Field(
        default=None, description="Where its value comes from, instead of value."
    )

    rules: ClassVar[tuple["Rule[Variable]", ...]] = (
        Rule(
            cel="!has(self.value) || !has(self.valueFrom)",
            holds=lambda it: it.value is None or it.value_from is None,
            message="a variable has one value: remove value or valueFrom",
            field="value",
        ),
        Rule(
            cel=f"!(self.name in {list(OPERATORS_VARIABLES)})",
            holds=lambda it: it.name not in OPERATORS_VARIABLES,
            message="this variable is the operator's: use serving.threads for OMP_NUM_THREADS, "
            "download.tokenSecret for HF_TOKEN, download.endpoint for HF_ENDPOINT, or another "
            "name",
            field="name",
        ),
    )


_DIFFER: Final[Rule[list[Variable]]] = Rule(
    cel="self.all(a, self.exists_one(b, b.name == a.name))",
    holds=lambda it: len({variable.name for variable in it}) == len(it),
    message="two variables have the same name: keep one of them",
)

Environment = Annotated[list[Variable], Checked(_DIFFER)]
