"""The operator's file: closed, and errors name the key and never a value."""

from __future__ import annotations

import pytest

from oce.sandboxd.config import ConfigError, load_config, parse_config

BASE = {"state_dir": "/var/lib/sandboxd"}


def test_the_whole_document(tmp_path):
    file = tmp_path / "sandboxd.toml"
    file.write_text(
        """
        [gateway]
        listen = "127.0.0.1:17670"
        state_dir = "/var/lib/sandboxd"
        reported_version = "0.1.2"
        service_domain = "agents.localhost"
        [confinement]
        bwrap = "/usr/bin/bwrap"
        [[confinement.read_only]]
        source = "/opt/codex"
        target = "/opt/oce/codex"
        [[mount_sources]]
        id = "agents"
        path = "/srv/agents"
        [[egress.upstream]]
        host = "api.openai.com"
        port = 443
        connect = "127.0.0.1:9443"
        ca_file = "/srv/ca.pem"
        """
    )
    config = load_config(file, listen="[::1]:0")
    assert config.listen == "[::1]:0"
    assert config.reported_version == "0.1.2"
    assert config.read_only[0].target == "/opt/oce/codex"
    assert str(config.mount_sources["agents"]) == "/srv/agents"


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ({}, "gateway.state_dir"),
        ({"gateway": {**BASE, "colour": "red"}}, "gateway.colour"),
        ({"gateway": BASE, "extra": {}}, "extra"),
        ({"gateway": {**BASE, "listen": "0.0.0.0:1"}}, "gateway.listen"),
        ({"gateway": {**BASE, "listen": "example.com:1"}}, "gateway.listen"),
        ({"gateway": {**BASE, "reported_version": "new"}}, "gateway.reported_version"),
        ({"gateway": BASE, "mount_sources": [{"id": "a"}]}, "mount_sources[0].path"),
        (
            {"gateway": BASE, "mount_sources": [{"id": "a", "path": "relative"}]},
            "mount_sources[0].path",
        ),
        (
            {"gateway": BASE, "confinement": {"read_only": [{"source": "/a", "x": 1}]}},
            "confinement.read_only[0].target",
        ),
        ({"gateway": BASE, "egress": {"upstream": [{"host": "*.x"}]}}, "egress.upstream[0]"),
        ({"gateway": BASE, "egress": {"colour": 1}}, "egress.colour"),
    ],
)
def test_mistakes_name_their_key(document, key):
    with pytest.raises(ConfigError) as caught:
        parse_config(document)
    assert caught.value.key.startswith(key)


def test_a_wider_listener_needs_the_explicit_setting():
    gateway = {**BASE, "listen": "0.0.0.0:1", "allow_non_loopback_listen": True}
    assert parse_config({"gateway": gateway}).listen_host == "0.0.0.0"  # noqa: S104 - the point
