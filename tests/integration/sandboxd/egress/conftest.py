import pytest

from oce.testing.egress_served import serving


@pytest.fixture
async def served(tmp_path):
    async with serving(tmp_path) as made:
        yield made
