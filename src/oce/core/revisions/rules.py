"""Rules of revisions and deployments, pure: what may be admitted, and how work becomes a status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.core.configurations.schema import read
from oce.domain.failures import CATALOGUE, SUCCESS_REASONS
from oce.domain.resources import DeploymentStatus

if TYPE_CHECKING:
    from oce.domain.resources import CredentialSource, Json
    from oce.store.work import Work

ACTIVATED: Final = frozenset(("REVISION_ACTIVATED", "REVISION_ALREADY_ACTIVE"))
OPENAI_BASE_URL: Final = "https://api.openai.com/v1"
"""Endpoint of an `openai` source that names none (reference/control-plane.md §5.5)."""
_SUPERSEDED: Final = frozenset(("SUPERSEDED_TARGET", "STOP_SUPERSEDED"))


def endpoint_matches(values: Json, source: CredentialSource) -> bool:
    """Tell whether the document's `baseUrl`, if it names one, is the endpoint that the credential is bound to."""
    named = read(values, "models.providers.openai.baseUrl")
    if named is None:
        return True
    bound = source.config.get("base_url", OPENAI_BASE_URL)
    return str(named).rstrip("/") == str(bound).rstrip("/")


def status_of(work: Work, *, lease_alive: bool) -> DeploymentStatus:
    """Derive a deployment's status from its work (reference/worker-console.md §5.4)."""
    if work.state == "claimed":
        return DeploymentStatus.RUNNING if lease_alive else DeploymentStatus.QUEUED
    if work.state == "queued":
        return DeploymentStatus.QUEUED
    if work.state == "succeeded" and work.reason_code in ACTIVATED:
        return DeploymentStatus.SUCCEEDED
    return DeploymentStatus.FAILED


def failure_code(reason_code: str | None) -> str:
    """Return the public code of a deployment that ended without serving."""
    if reason_code is None:
        return "UNKNOWN_FAILURE"
    return "REVISION_SUPERSEDED" if reason_code in _SUPERSEDED else reason_code


def attempt_code(reason_code: str) -> str:
    """Return the public code of an unfinished attempt; what the catalogue does not know as work is never shown raw."""
    row = CATALOGUE.get(reason_code)
    if row is not None and row.tempos and reason_code not in SUCCESS_REASONS:
        return reason_code
    return "RECONCILIATION_PENDING"


def message_of(code: str) -> str:
    """Return the sentence of a code; an unlisted one gets the general sentence with its name."""
    row = CATALOGUE.get(code)
    return row.message if row is not None else f"{CATALOGUE['UNKNOWN_FAILURE'].message} ({code})"
