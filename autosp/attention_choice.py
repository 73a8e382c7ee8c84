"""The names of the forms that attention can take on several ranks. Standard library only."""

from __future__ import annotations

from typing import Literal, get_args

from autosp.errors import AutoSPError

AttentionChoice = Literal["auto", "ulysses", "ring", "hybrid"]
ATTENTION_CHOICES: tuple[AttentionChoice, ...] = get_args(AttentionChoice)


def attention_choice(name: str) -> AttentionChoice:
    """``name`` as one of the choices.

    Raises:
        AutoSPError: there is no such choice.
    """
    for choice in ATTENTION_CHOICES:
        if choice == name:
            return choice
    raise AutoSPError(f"unknown attention {name!r}", hint=f"Choose {', '.join(ATTENTION_CHOICES)}")
