"""The file that `occ agent init` writes: the smallest set of documents that make a Codex Agent, each line explained."""

from __future__ import annotations

import json
from typing import Final

DEFAULT_MODEL: Final = "gpt-5.1-codex"


def manifest(name: str, model: str) -> str:
    """Return the text for an Agent of that name."""
    quoted = json.dumps(name, ensure_ascii=False)
    return f"""\
# An Agent that runs Codex in a Sandbox. Apply it with:
#   OPENAI_API_KEY=… occ apply -f FILE --deploy --wait
# then talk to it:
#   occ agent chat {name} "Hello"

# The model's key. Its value is read from the environment when you apply, and never from this file.
kind: Secret
name: openai-key
valueFrom:
  env: OPENAI_API_KEY
---
# What the Agent uses without holding it: inside the Sandbox there is only a placeholder.
kind: CredentialSource
name: openai
type: openai
secrets:
  api_key: openai-key
---
# What the Agent runs with. Every key is explained in docs/reference/configuration.md; an unknown one is refused.
kind: Configuration
name: {quoted}
values:
  agents:
    defaults:
      # Models of `openai` run on the Codex Harness.
      model:
        primary: {json.dumps(f"openai/{model}")}
---
kind: Agent
name: {quoted}
configuration: {quoted}
executionMode: dedicated
harnessAuth:
  method: credential_source
  source: openai
credentialSources: [openai]
# First files of its workspace, taken when the Agent is made and never again: AGENTS.md, SOUL.md, IDENTITY.md, USER.md.
# initialWorkspaceFiles:
#   AGENTS.md: |
#     Answer in one short paragraph.
"""
