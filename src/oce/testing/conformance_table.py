"""A pytest plugin that prints what a conformance run showed: members down, cases across, one table per subject.

Load it with `-p oce.testing.conformance_table`. A cell counts what passed; a failure or a skip is never hidden behind a pass.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from oce.testing.conformance_subject import Case

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

Outcomes = defaultdict[tuple[str, str], list[str]]
_MARKS: Final = {"passed": "ok", "skipped": "n/a", "failed": "FAILED"}


class Table:
    """Collects outcomes by subject, member and case."""

    def __init__(self) -> None:
        self.cases: dict[str, tuple[str, Case]] = {}
        self.found: defaultdict[str, Outcomes] = defaultdict(lambda: defaultdict(list))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Remember which item is which case of which subject."""
        for item in items:
            function = getattr(item, "function", None)
            found = getattr(function, "conformance", None)
            owner = getattr(item, "cls", None)
            if isinstance(found, Case) and owner is not None:
                self.cases[item.nodeid] = (owner.__name__.removeprefix("Test"), found)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a call's outcome, or that of a set-up that did not get so far."""
        known = self.cases.get(report.nodeid)
        if known is not None and (report.when == "call" or not report.passed):
            subject, found = known
            self.found[subject][found.member, found.case].append(report.outcome)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the tables."""
        for subject, outcomes in self.found.items():
            terminalreporter.section(f"conformance: {subject}")
            for line in render(outcomes):
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """Register the table for this run."""
    config.pluginmanager.register(Table(), "conformance-table")


def render(outcomes: Mapping[tuple[str, str], Sequence[str]]) -> list[str]:
    """Return the table's lines. Pure."""
    members = sorted({member for member, _ in outcomes})
    cases = sorted({what for _, what in outcomes})
    rows = [["member", *cases]]
    rows += [
        [member, *(_cell(outcomes.get((member, what), ())) for what in cases)] for member in members
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cell(outcomes: Sequence[str]) -> str:
    for worst in ("failed", "skipped", "passed"):
        count = sum(outcome == worst for outcome in outcomes)
        if count:
            return _MARKS[worst] if count == 1 else f"{_MARKS[worst]} x{count}"
    return "-"
