"""Programs that run inside a Sandbox: standard library only, started with ``python3 -I -S``, ready in milliseconds.

They hold no secret (a placeholder and a token digest at most), know nothing of the control plane, and are laid into a read-only folder
by :func:`install`.
"""

from oce.harness.installation import install

__all__ = ["install"]
