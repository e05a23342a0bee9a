"""The startup YAML: what is refused, by which path, and that no value is ever quoted."""

import pytest
import yaml

from oce.installation.compose import settings_of
from oce.installation.document import parse_document, refuse_retired_environment
from oce.installation.errors import StartupRefused
from oce.installation.rules import check_composition
from oce.installation.schema import parse_startup


def document(**changes):
    base = {
        "drivers": {
            "configuration": {
                "id": "configuration-local",
                "implementation": "local",
                "configuration": {},
            },
            "iam": {"id": "iam", "implementation": "native", "configuration": {}},
            "compute": {"id": "compute-local", "implementation": "local", "configuration": {}},
            "secret": {"id": "secret-local", "implementation": "local", "configuration": {}},
            "sandbox": {"id": "sandbox-openshell", "configuration": {}},
            "credential_gateway": {"id": "credentials-openshell", "configuration": {}},
        },
        "backend": [
            {
                "id": "sandboxd",
                "type": "openshell",
                "configuration": {},
                "drivers": {
                    "sandbox": "sandbox-openshell",
                    "credential_gateway": "credentials-openshell",
                },
            }
        ],
    }
    return base | changes


def drivers(**changes):
    block = document()["drivers"]
    for name, entry in changes.items():
        if entry is None:
            block.pop(name)
        else:
            block[name] = block.get(name, {"id": name, "configuration": {}}) | entry
    return document(drivers=block)


def refusal(value):
    with pytest.raises(StartupRefused) as caught:
        check_composition(parse_startup(value))
    return caught.value


def test_the_single_machine_combination_is_accepted():
    check_composition(parse_startup(document()))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (document(colour="red"), "colour"),
        (document(integrations={}), "integrations"),
        (document(logging={"level": "loud"}), "logging.level"),
        (document(occ={"clutser": "x"}), "occ.clutser"),
        (drivers(iam=None), "drivers.iam"),
        (drivers(plugin={}), "drivers.plugin"),
        (drivers(iam={"configuration": {"x": 1}}), "drivers.iam.configuration"),
        (drivers(compute={"implementation": "docker"}), "drivers.compute.implementation"),
        (drivers(sandbox=None), "drivers.sandbox"),
        (drivers(compute={"id": "c", "package": "acme"}) | {}, "drivers.compute.implementation"),
        (drivers(secret={"implementation": "kubernetes"}), "drivers.secret.implementation"),
        (drivers(credential_gateway=None), "drivers.credential_gateway"),
        (document(backend=[]), "drivers.sandbox"),
        (drivers(sandbox={"id": "another"}), "backend[].drivers.sandbox"),
        (
            document(backend=[{"id": "g", "type": "github", "configuration": {}, "drivers": {}}]),
            "backend[0].type",
        ),
        (document(backend=document()["backend"] * 2), "backend[1].id"),
    ],
)
def test_a_wrong_file_is_refused_by_the_path_of_the_key(value, path):
    assert refusal(value).path == path


def installed(name, **changes):
    value = drivers(**changes)
    entry = value["drivers"][name]
    entry.pop("implementation", None)
    entry["package"] = "acme-driver"
    return value


def test_a_bundled_secret_driver_is_the_only_kind():
    assert refusal(installed("secret")).path == "drivers.secret.package"


def test_an_installed_compute_takes_no_sandbox():
    assert refusal(installed("compute")).path == "drivers.sandbox"


def test_an_installed_sandbox_composes_with_kubernetes_compute_only():
    assert refusal(installed("sandbox")).path == "drivers.sandbox.package"


def test_an_installed_sandbox_cannot_pair_with_a_credential_gateway():
    stores = {"implementation": "kubernetes"}
    value = installed("sandbox", compute=stores, secret=stores, configuration=stores)
    assert refusal(value).path == "drivers.credential_gateway"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a: {b: 'Bearer abcdef'}", "a.b"),
        ("a: [x, 'sk-abcdefgh1234']", "a[1]"),
        ("a: {apiKey: plain}", "a.apiKey"),
        ("a: {password: plain}", "a.password"),
        ("a: {__proto__: 1}", "a.__proto__"),
        ("a: {secretRef: x}", "a.secretRef"),
        ("a: 9007199254740993", "a"),
        ("a: 1\na: 2", "a"),
        ("a: 2026-01-01", "a"),
    ],
)
def test_the_scan_names_the_path_and_never_the_value(text, path):
    with pytest.raises(StartupRefused) as caught:
        parse_document(text)
    assert caught.value.path == path
    for value in ("abcdef", "plain", "9007199254740993", "2026"):
        assert value not in str(caught.value)


def test_a_token_may_be_named_by_its_file():
    parse_document("auth: {mode: bearerTokenFile, tokenPath: /run/token}")


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "? [1]\n: x", "!!python/object:os.system x"])
def test_what_is_not_one_strict_mapping_is_refused(text):
    with pytest.raises(StartupRefused):
        parse_document(text)


def test_retired_selectors_in_the_environment_are_refused():
    with pytest.raises(StartupRefused, match="OCC_COMPUTE_DRIVER"):
        refuse_retired_environment({"OCC_COMPUTE_DRIVER": "docker"})


def test_the_example_survives_a_round_trip_through_yaml():
    parse_startup(parse_document(yaml.safe_dump(document())))


def test_the_harness_version_comes_from_the_file():
    assert settings_of(parse_startup(document())).harness_versions == {"codex": "0.163.0"}
    chosen = drivers(compute={"configuration": {"codexVersion": "0.170.1"}})
    assert settings_of(parse_startup(chosen)).harness_versions == {"codex": "0.170.1"}


@pytest.mark.parametrize("version", ["newest", 163, "1", "1.2 3"])
def test_a_harness_version_is_a_version(version):
    chosen = drivers(compute={"configuration": {"codexVersion": version}})
    with pytest.raises(StartupRefused) as caught:
        settings_of(parse_startup(chosen))
    assert caught.value.path == "drivers.compute.configuration.codexVersion"
