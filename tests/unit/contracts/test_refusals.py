"""Refusals say what they must and repeat nothing that a provider may have written."""

from __future__ import annotations

import pytest

from oce.contracts.refusals import OwnershipConflict


@pytest.mark.parametrize(
    "field", ["phase", "labels.app.kubernetes.io/managed-by", "spec.command[3]", "spec.a_b-c"]
)
def test_a_conflict_names_the_field(field):
    refused = OwnershipConflict("Sandbox", field)
    assert str(refused) == f"Sandbox differs in {field}"
    assert refused.field == field


@pytest.mark.parametrize(
    "name", ["\x1b[31m", "a\nb", "<script>", "\u202ename", "x" * 400, "a b", "", "{{config}}"]
)
def test_a_name_that_a_provider_chose_is_repeated_only_when_it_is_plain(name):
    refused = OwnershipConflict("Sandbox", f"annotations.{name}" if name else "")
    assert str(refused) == "Sandbox differs in a name that cannot be shown"
    assert refused.field == "a name that cannot be shown"
