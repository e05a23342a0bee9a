import re

import pytest

from oce.api.settings import ApiSettingsRefused, from_environment


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "internal.token").write_text("t" * 40)
    return {
        "OCC_CONFIG_PATH": "/etc/oce/installation.yaml",
        "OCC_DATABASE_URL": "postgresql://occ:hunter2@db/occ",
        "OCC_TLS_CERTIFICATE": "/tls/api.crt",
        "OCC_TLS_KEY": "/tls/api.key",
        "OCC_INTERNAL_TOKEN_FILE": str(tmp_path / "internal.token"),
    }


REFUSALS = [
    ({"OCC_INTERNAL_TOKEN_FILE": ""}, "OCC_INTERNAL_TOKEN_FILE is required"),
    ({"OCC_TLS_KEY": ""}, "OCC_TLS_CERTIFICATE and OCC_TLS_KEY go together"),
    (
        {"OCC_TLS_CERTIFICATE": "", "OCC_TLS_KEY": "", "OCC_HOST": "0.0.0.0"},  # noqa: S104 # it is refused
        "OCC_TLS_CERTIFICATE is required unless OCC_HOST is a loopback address",
    ),
    ({"OCC_PRIVATE_HOST": "::"}, "OCC_PRIVATE_HOST must be"),
    ({"OCC_PORT": "70000"}, "OCC_PORT must be a number from 1 to 65535"),
    ({"OCC_CONFIG_PATH": "relative.yaml"}, "OCC_CONFIG_PATH must be an absolute path"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSALS)
def test_a_wrong_setting_is_refused_by_name(environment, change, sentence):
    with pytest.raises(ApiSettingsRefused, match=re.escape(sentence)) as refusal:
        from_environment({**environment, **change})
    assert "hunter2" not in str(refusal.value)


def test_the_settings_that_are_there_are_read(environment, tmp_path):
    found = from_environment(environment)
    assert (found.host, found.port, found.private_port) == ("127.0.0.1", 8443, 9464)
    assert found.internal_token.reveal() == "t" * 40
    (tmp_path / "url").write_text("postgresql://from-file\n")
    del environment["OCC_DATABASE_URL"]
    environment["OCC_DATABASE_URL_FILE"] = str(tmp_path / "url")
    assert from_environment(environment).database_url == "postgresql://from-file"
