"""Redaction of log text: every string that leaves goes through `redact`, the only maker of `Redacted`.

Best effort, linear time (reference/worker-console.md §12.6): each pattern is a plain scan without nested repetition, so that a line
made by a hostile workload cannot slow the control plane. What is removed is replaced by `[redacted:<pattern>]`. Known hole: an opaque
token under 40 characters without a known prefix or a telling key.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NewType

Redacted = NewType("Redacted", str)
"""Text that passed `redact`; records are built from nothing else."""

_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]|\x1b\\[[0-9;]{0,16}[A-Za-z]"
)
_TELLING_KEY: Final = (
    r"[A-Za-z0-9_.-]{0,64}(?:password|passwd|passphrase|secret|token|api[_-]?key|apikey|credential|private[_-]?key"
    r"|access[_-]?key|client[_-]?secret)[A-Za-z0-9_.-]{0,32}"
)

_SIMPLE: Final = (
    (
        "pem",
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{1,40}-----[^-]{0,65536}(?:-----END [A-Z0-9 ]{1,40}-----|$)"
        ),
    ),
    (
        "header",
        re.compile(
            r"(?i)\b(?:proxy-)?authorization\s{0,4}[:=]\s{0,4}[^\r\n,;]{1,4096}"
            r"|\b(?:set-)?cookie\s{0,4}[:=]\s{0,4}[^\r\n]{1,4096}|\bx-api-key\s{0,4}[:=]\s{0,4}\S{1,4096}"
        ),
    ),
    ("bearer", re.compile(r"(?i)\bbearer\s{1,4}\S{4,4096}")),
    (
        "netrc",
        re.compile(
            r"(?i)\b(?:login|password)\s{1,4}\S{1,256}\s{1,4}(?:login|password)\s{1,4}\S{1,256}"
        ),
    ),
    ("jwt", re.compile(r"\beyJ[\w-]{5,4096}\.[\w-]{5,4096}\.[\w-]{0,4096}")),
    (
        "token",
        re.compile(
            r"\b(?:sk-ant-|sk-|ghp_|gho_|ghu_|ghs_|ghr_|github_pat_|glpat-|npm_|[sr]k_(?:live|test)_)[\w-]{8,512}"
            r"|\bxox[abpr]-[\w-]{6,512}|\bxapp-[\w-]{6,512}|\bhf_\w{30,128}|\bocc_[0-9a-f]{32}_[\w-]{8,128}"
        ),
    ),
    ("aws", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("google", re.compile(r"\bAIza[\w-]{30,64}")),
)
_USERINFO: Final = re.compile(r"(?<=://)[^\s/@'\"]{1,512}@")
_QUERY: Final = re.compile(r"(?<=[?&])([A-Za-z0-9_.~%\[\]-]{1,128})=[^&\s#'\"]{1,4096}")
_FRAGMENT: Final = re.compile(r"(://[^\s#'\"]{1,2048})#[^\s'\"]{1,2048}")
_BASIC: Final = re.compile(r"(?i)\bbasic\s{1,4}([A-Za-z0-9+/=]{4,1024})")
_JSON_PAIR: Final = re.compile(
    rf"(?i)(\"{_TELLING_KEY}\"\s{{0,4}}:\s{{0,4}}\")[^\"]{{1,8192}}(?=\"|$)"
)
_PAIR: Final = re.compile(
    rf"(?i)(?<![A-Za-z0-9_.-])({_TELLING_KEY}\s{{0,2}}[=:]\s{{0,2}})(?!\[redacted)[^\s,;&\"']{{1,4096}}"
)
_UPPER: Final = re.compile(r"\b([A-Z][A-Z0-9_]{0,64}_KEY=)(?!\[redacted)\S{1,4096}")
_FLAG: Final = re.compile(
    r"(?<!\S)(--?(?:password|pass|token|secret|api-key|with-token|username)[= ]{1,2})(?!\[redacted)\S{1,1024}"
)
_USER_FLAG: Final = re.compile(
    r"(?<!\S)((?:-u|--user|-U|--proxy-user)[= ]{0,2})[^\s:]{1,256}:\S{1,1024}"
)
_RUN: Final = re.compile(r"[A-Za-z0-9+/_-]{40,8192}={0,2}")


def redact(text: str) -> Redacted:
    """Return the text without control characters and without anything that looks like a credential."""
    clean = _CONTROL.sub("", text)
    for name, pattern in _SIMPLE:
        clean = pattern.sub(f"[redacted:{name}]", clean)
    clean = _BASIC.sub(_basic, clean)
    clean = _USERINFO.sub("[redacted:userinfo]@", clean)
    clean = _QUERY.sub(r"\1=[redacted:query]", clean)
    clean = _FRAGMENT.sub(r"\1#[redacted:fragment]", clean)
    clean = _JSON_PAIR.sub(r"\1[redacted:key]", clean)
    clean = _PAIR.sub(r"\1[redacted:key]", clean)
    clean = _UPPER.sub(r"\1[redacted:key]", clean)
    clean = _FLAG.sub(r"\1[redacted:argument]", clean)
    clean = _USER_FLAG.sub(r"\1[redacted:argument]", clean)
    return Redacted(_RUN.sub(_run, clean))


def _basic(match: re.Match[str]) -> str:
    try:
        decoded = base64.b64decode(match[1] + "=" * (-len(match[1]) % 4), validate=True)
    except (binascii.Error, ValueError):
        return match[0]
    return "[redacted:basic]" if b":" in decoded else match[0]


def _run(match: re.Match[str]) -> str:
    """Hide long runs that look random: hex, base64, or mixed-case base64url; leave paths and long words."""
    run = match[0]
    if "/" in run and "+" not in run and not run.endswith("="):
        parts = run.split("/")
        return "/".join("[redacted:run]" if _random(part) else part for part in parts)
    return "[redacted:run]" if _random(run) else run


def _random(run: str) -> bool:
    if len(run) < 40:  # noqa: PLR2004 - the length of the documented rule
        return False
    hexadecimal = all(character in "0123456789abcdefABCDEF" for character in run)
    mixed = (
        any(c.isdigit() for c in run)
        and any(c.isupper() for c in run)
        and any(c.islower() for c in run)
    )
    return hexadecimal or mixed
