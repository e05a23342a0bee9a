"""Templates of provider files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.sandboxd.lifecycle.templates import MissingConfigError, fill


def test_only_config_templates_are_replaced():
    content = "a={{config.x}} {{other}} {{ config.y }} {{{config.x}}}"
    assert fill(content, {"x": "1", "y": "2"}) == "a=1 {{other}} 2 {1}"


def test_a_missing_key_is_an_error():
    with pytest.raises(MissingConfigError, match="'z'"):
        fill("{{config.z}}", {"x": "1"})


@given(st.text())
def test_a_value_is_never_read_as_a_template(value):
    assert fill("{{config.x}}|{{config.x}}", {"x": value, "y": "secret"}) == f"{value}|{value}"
