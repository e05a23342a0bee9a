"""`occ`: the command line of the control plane. It speaks only through `oce.client`.

Exit codes: 0 done; 1 refused or failed; 2 the command line is wrong; 3 there is no such resource; 130 interrupted. Errors go to
standard error with HTTP status, code, message, hint and request id.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final

import click

from oce.cli.lazy import LazyGroup
from oce.cli.session import Session, connection_options, session_of
from oce.client.errors import AmbiguousName, ClientError, Refused, TurnFailed, Unreachable

EXIT_FAILURE: Final = 1
EXIT_NOT_FOUND: Final = 3
EXIT_INTERRUPTED: Final = 130

_TABLE: Final = {
    "up": ("oce.dev.commands.up:up", "Start everything on this machine."),
    "down": ("oce.dev.commands.down:down", "Stop everything on this machine; data stays."),
    "status": ("oce.dev.commands.status:status", "Show what runs on this machine."),
    "doctor": (
        "oce.dev.commands.doctor:doctor",
        "Show which rights this machine gives, and how to get more.",
    ),
    "demo": ("oce.dev.commands.demo:demo", "Run one confined agent from nothing, and clean up."),
    "agent": ("oce.cli.agents:agent", "Create, deploy, stop, observe and talk to Agents."),
    "apply": ("oce.cli.apply:apply", "Make resources be as files say."),
    "diff": ("oce.cli.apply:diff", "Show what `apply` would change."),
    "configuration": ("oce.cli.configurations:configuration", "What Agents run with."),
    "secret": ("oce.cli.secrets:secret", "Secret values; written, never read back."),
    "credential-source": (
        "oce.cli.sources:source",
        "Credentials that Agents use without holding them.",
    ),
    "namespace": ("oce.cli.namespaces:namespace", "Tenants."),
    "role": ("oce.cli.access:role", "Sets of permissions."),
    "binding": ("oce.cli.access:binding", "Who has which Role where."),
    "service-principal": ("oce.cli.access:principal", "Identities for programs."),
    "key": ("oce.cli.keys:key", "Service keys."),
    "audit": ("oce.cli.audit:audit", "Who did what."),
    "installation": ("oce.cli.installation:installation", "This control plane."),
    "context": ("oce.cli.contexts:context", "Which control plane the commands speak to."),
}


def _installed_version() -> str:
    metadata = importlib.import_module("importlib.metadata")  # costs 30 ms, wanted here only
    try:
        return str(metadata.version("openclaw-enterprise"))
    except metadata.PackageNotFoundError:
        return "dev"


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # click calls it so
    if value and not ctx.resilient_parsing:
        click.echo(f"occ {_installed_version()}")
        ctx.exit()


occ = LazyGroup(
    "occ",
    table=_TABLE,
    help="Run AI agents in real sandboxes.",
    epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong command line, 3 no such resource, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    params=[
        *connection_options(),
        click.Option(
            ("-v", "--version"),
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Print the version.",
        ),
    ],
)


def report(error: ClientError) -> int:
    """Print an error for people and return the exit code it stands for."""
    head = str(error)
    code = EXIT_FAILURE
    lines: list[str] = []
    if isinstance(error, Refused):
        head = f"{error.status} {error.code}: {error.message}"
        lines += [f"  {item.path or '/'}: {item.code}" for item in error.details]
        code = EXIT_NOT_FOUND if error.code == "NOT_FOUND" else EXIT_FAILURE
    elif isinstance(error, TurnFailed):
        head = f"{error.code}: {error}"
    elif isinstance(error, AmbiguousName) and error.found == 0:
        code = EXIT_NOT_FOUND
    elif isinstance(error, Unreachable) and error.sent:
        lines.append("  It is not known whether the request took effect.")
    if error.hint:
        lines.append(f"Hint: {error.hint}")
    if isinstance(error, Refused) and error.retry_after:
        lines.append(f"Retry after: {error.retry_after} s")
    if isinstance(error, Refused) and error.request_id:
        lines.append(f"Request: {error.request_id}")
    click.echo("\n".join((f"Error: {head}", *lines)), err=True)
    return code


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    session = Session()
    try:
        result = occ.main(args=arguments, prog_name="occ", standalone_mode=False, obj=session)
    except ClientError as error:
        return report(error)
    except click.exceptions.Abort:
        click.echo("Interrupted.", err=True)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    finally:
        session.close()
    return result if isinstance(result, int) else 0


def main() -> None:
    """Entry point of the `occ` program."""
    sys.exit(run())


__all__ = ["main", "occ", "report", "run", "session_of"]

if __name__ == "__main__":
    main()
