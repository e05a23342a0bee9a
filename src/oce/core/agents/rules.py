"""Rules of Agents, pure (reference/control-plane.md §5.7)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import Detail
from oce.domain.resources import AGENT_SOURCES_MAX, WORKSPACE_FILE_MAX, WORKSPACE_FILES
from oce.domain.secret import SecretText

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oce.domain.resources import Agent, AgentRevision, HarnessAuth

SECRET_METHODS: Final = frozenset(("api_key", "codex_pat"))
"""Methods that name a Secret; a draft may hold them, a deploy beside a Credential Gateway refuses them."""
SOURCE_METHOD: Final = "credential_source"
MODES: Final = ("embedded", "dedicated")


def draft_problems(
    execution_mode: str, auth: HarnessAuth | None, sources: Sequence[str]
) -> tuple[Detail, ...]:
    """Return what is wrong with a draft whose references are ids already."""
    problems: list[Detail] = []
    if execution_mode not in MODES:
        problems.append(Detail("/executionMode", "INVALID_VALUE", f"one of {', '.join(MODES)}"))
    if len(sources) > AGENT_SOURCES_MAX:
        problems.append(Detail("/credentialSources", "TOO_LONG", f"at most {AGENT_SOURCES_MAX}"))
    if len(set(sources)) != len(sources):
        problems.append(Detail("/credentialSources", "INVALID_VALUE", "a source is repeated"))
    if auth is not None:
        problems += _auth_problems(auth, sources)
    return tuple(problems)


def _auth_problems(auth: HarnessAuth, sources: Sequence[str]) -> list[Detail]:
    if auth.method == SOURCE_METHOD:
        if auth.source_id is None:
            return [Detail("/harnessAuth/sourceId", "REQUIRED")]
        if auth.source_id not in sources:
            return [
                Detail("/harnessAuth/sourceId", "INVALID_VALUE", "must be in credentialSources")
            ]
        return []
    if auth.method in SECRET_METHODS:
        return [] if auth.source_id is not None else [Detail("/harnessAuth/source", "REQUIRED")]
    return [
        Detail("/harnessAuth/method", "INVALID_VALUE", "no Driver of this installation offers it")
    ]


def references(agent: Agent, bound_secrets: Sequence[str]) -> frozenset[tuple[str, str]]:
    """Return the (kind, id) that a draft needs to `operate`: its sources, its harness Secret, what its Configuration binds."""
    found = {("credential_source", source_id) for source_id in agent.credential_sources}
    found |= {("secret", secret_id) for secret_id in bound_secrets}
    auth = agent.harness_auth
    if auth is not None and auth.source_id is not None:
        kind = "credential_source" if auth.method == SOURCE_METHOD else "secret"
        found.add((kind, auth.source_id))
    return frozenset(found)


def initial_file_problems(files: Mapping[str, str]) -> tuple[Detail, ...]:
    """Return what is wrong with initial workspace files; never a word of them."""
    problems: list[Detail] = []
    for name, text in files.items():
        if name not in WORKSPACE_FILES:
            names = ", ".join(WORKSPACE_FILES)
            problems.append(
                Detail(
                    "/initialWorkspaceFiles", "INVALID_VALUE", f"a name that is not one of {names}"
                )
            )
            continue
        where = f"/initialWorkspaceFiles/{name}"
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            problems.append(Detail(where, "INVALID_VALUE", "not Unicode text"))
            continue
        if "\0" in text:
            problems.append(Detail(where, "INVALID_VALUE", "holds a NUL character"))
        elif size > WORKSPACE_FILE_MAX:
            problems.append(Detail(where, "TOO_LONG", f"at most {WORKSPACE_FILE_MAX} bytes"))
    return tuple(problems)


def workspace_document(
    revision: AgentRevision, setup_id: str, files: Mapping[str, str]
) -> SecretText:
    """Return what Compute stages for a revision with initial files; none of them once they are in place."""
    document = {
        "id": setup_id,
        "namespaceId": revision.namespace_id,
        "agentId": revision.agent_id,
        "files": dict(files),
    }
    return SecretText(json.dumps(document, ensure_ascii=False, sort_keys=True))
