"""The pages stay true: links, anchors, examples, commands and generated tables are checked against the code."""

import importlib
import importlib.util
import itertools
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from oce.cli.main import occ
from oce.cli.starter import DEFAULT_MODEL
from oce.contracts import drivers as contract_drivers
from oce.contracts import sandbox as contract_sandbox
from oce.core.configurations.schema import NETWORK_POLICY_KEY, value_problems
from oce.dev import operator_settings
from oce.domain.failures import CATALOGUE
from oce.drivers.openshell.driver import OpenShellSandbox
from oce.drivers.openshell.network_rules import admit_additions, parse_document
from oce.installation.compose import compose
from oce.installation.document import parse_document as parse_startup_text
from oce.installation.errors import StartupRefused
from oce.installation.rules import check_composition
from oce.installation.schema import parse_startup
from oce.sandboxd.config import parse_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACES_OF_ONE_MACHINE = re.compile(r"(?<![\w.~/])/(?:work|tmp/|root/|home/)\w")


def the_generator():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    return [text for kind, text in FENCE.findall(page.read_text()) if kind == language]


def prose(page):
    return FENCE.sub("", page.read_text())


def anchors(page):
    text = prose(page)
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading)).strip().lower()
        found.add(plain.replace(" ", "-"))
    return found


def test_generated_tables_are_current():
    stale = [
        named(page) for page, text in the_generator().render().items() if page.read_text() != text
    ]
    assert stale == [], "run: python scripts/reference.py"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_opens_with_what_it_is_for_and_names_no_place_of_one_machine(page):
    heading, _, rest = page.read_text().partition("\n")
    assert heading.startswith("# ")
    assert rest.strip()
    assert rest.strip()[0] not in "#|-", "a sentence, before any list or table"
    assert not PLACES_OF_ONE_MACHINE.search(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_lead_somewhere(page):
    broken = []
    for target in LINK.findall(prose(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


def test_every_failure_points_at_an_anchor_that_exists():
    for row in CATALOGUE.values():
        path, _, anchor = row.docs.partition("#")
        assert anchor in anchors(ROOT / path), row.code


def sayings():
    """Every `occ …` command line that a page or a failure's hint shows."""
    for page in PAGES:
        for text in blocks(page, "console"):
            for line in re.findall(r"^\$ (occ .+)$", text.replace("\\\n", " "), re.MULTILINE):
                yield named(page), line
        for line in re.findall(r"`(occ [a-z][^`]*)`", prose(page).replace("\n", " ")):
            yield named(page), line
    for row in CATALOGUE.values():
        for line in re.findall(r"`(occ [a-z][^`]*)`", row.hint):
            yield row.code, line


def unknown_part(line):
    """Return what of a command line `occ` does not know, or None."""
    words = list(itertools.takewhile(lambda word: word != "|", shlex.split(line, comments=True)))[
        1:
    ]
    command, context, path = occ, click.Context(occ), ["occ"]
    known = {option for param in occ.params for option in param.opts}
    takes_value = {option for param in occ.params for option in param.opts if not is_flag(param)}
    while words:
        word = words.pop(0)
        if word.startswith("-") and len(word) > 1:
            for option in word.split("/") if "/-" in word else [word.partition("=")[0]]:
                if option not in known | {"--help"}:
                    return f"{' '.join(path)} {option}"
            if word in takes_value and words:
                words.pop(0)
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z|-]*", word):
            inner = [command.get_command(context, one) for one in word.split("|")]
            if None in inner:
                return f"{' '.join(path)} {word}"
            command, path = inner[0], [*path, word]
            known |= {option for param in command.params for option in param.opts}
            takes_value |= {
                option for param in command.params for option in param.opts if not is_flag(param)
            }
    return None


def is_flag(param):
    return isinstance(param, click.Option) and param.is_flag


def test_every_command_that_is_shown_exists():
    wrong = {(where, found) for where, line in sayings() if (found := unknown_part(line))}
    assert wrong == set()


def test_the_startup_example_composes_and_kubernetes_is_refused_by_name():
    text = blocks(ROOT / "docs/reference/startup-yaml.md", "yaml")[0]
    startup = parse_startup(parse_startup_text(text))
    check_composition(startup)
    assert compose(startup, None).compute.id == "compute-local"
    other = parse_startup(
        parse_startup_text(text.replace("implementation: local", "implementation: kubernetes"))
    )
    with pytest.raises(StartupRefused, match="Kubernetes Compute is not part of this release"):
        compose(other, None)


def test_configuration_examples_are_accepted():
    seen = 0
    for page in PAGES:
        for text in blocks(page, "yaml"):
            for document in yaml.safe_load_all(text):
                values = (document or {}).get("values")
                if values is None:
                    continue
                seen += 1
                assert value_problems(values) == (), named(page)
                additions = values.get(NETWORK_POLICY_KEY, {}).get("additions", [])
                admit_additions(
                    parse_document(additions, ""), (), repository_credentials=False, path=""
                )
    assert seen


def test_toml_examples_are_accepted(tmp_path):
    (gateway,) = blocks(ROOT / "docs/reference/sandboxd.md", "toml")
    assert parse_config(tomllib.loads(gateway)).mount_sources
    (operator,) = blocks(ROOT / "docs/reference/single-machine.md", "toml")
    (tmp_path / "operator.toml").write_text(operator)
    assert operator_settings.read(tmp_path / "operator.toml").upstreams


def test_pages_name_the_model_that_new_agents_get():
    for page in PAGES:
        assert set(re.findall(r"gpt-[0-9][\w.-]*\w", page.read_text())) <= {DEFAULT_MODEL}, page


def resolves(name):
    """Tell whether a dotted name is a module of ours, or something reachable from one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def test_names_of_modules_and_functions_exist():
    wrong = {
        (named(page), name)
        for page in PAGES
        for name in re.findall(r"`(oce(?:\.\w+)+)`", page.read_text())
        if not resolves(name)
    }
    assert wrong == set()


def test_the_contract_page_lists_every_ability_and_its_members():
    page = (ROOT / "docs/contracts/sandbox.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (`.+?`) \|", page, re.MULTILINE))
    abilities = {
        name
        for name, value in vars(contract_sandbox).items()
        if getattr(value, "_is_protocol", False) and value is not contract_sandbox.SandboxDriver
        if value.__module__ == contract_sandbox.__name__ and name in vars(contract_drivers)
    }
    assert set(rows) == abilities
    for members in rows.values():
        for member in re.findall(r"`(\w+)`", members):
            assert hasattr(OpenShellSandbox, member)
