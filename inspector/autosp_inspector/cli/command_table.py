"""Every command, in the order of the help. The one place that lists them."""

from __future__ import annotations

import click

from autosp_inspector.cli.commands import (
    attention,
    collectives,
    completion,
    decisions,
    explain,
    export,
    findings,
    hardware,
    inspect_target,
    memory,
    nodes,
    passes,
    query,
    record,
    show,
    summary,
    timeline,
    upgrade,
    verify,
)
from autosp_inspector.cli.view import view_command


def all_commands() -> tuple[click.Command, ...]:
    """Fresh commands."""
    return (
        inspect_target.command(),
        record.command(),
        show.command(),
        view_command(summary.view()),
        view_command(findings.check_view()),
        view_command(findings.findings_view()),
        view_command(passes.view()),
        view_command(decisions.view()),
        view_command(nodes.view()),
        explain.command(),
        view_command(collectives.view()),
        view_command(attention.view()),
        view_command(memory.view()),
        view_command(timeline.view()),
        verify.command(),
        export.command(),
        query.command(),
        upgrade.command(),
        hardware.command(),
        completion.command(),
    )
