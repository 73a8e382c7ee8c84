"""One declaration of all keys."""

from __future__ import annotations

from collections import Counter

from autosp_tui.bindings import COMMANDS, commands_of
from autosp_tui.screens.help import help_lines

VIEWS = ("overview", "graph", "passes", "collectives", "timeline", "memory", "attention")
PANES = (("list",), ("tree", "list"), ("detail",), ("lanes",), ("curve",))


def test_no_key_means_two_things_at_once() -> None:
    for view in VIEWS:
        for pane in PANES:
            keys = [
                key
                for command in commands_of(*pane, view, "view", "app")
                for key in command.keys.split(",")
            ]
            repeated = [key for key, count in Counter(keys).items() if count > 1]
            assert repeated == [], (view, pane)


def test_every_key_of_the_pane_and_the_view_is_in_the_help() -> None:
    text = "\n".join(line.text for line in help_lines("graph", "Modules", ("tree", "list")))
    for command in commands_of("tree", "list", "graph", "view", "app"):
        assert command.help in text
    assert "Earlier pass" not in text
    assert "hide or show nodes" not in text


def test_the_keys_people_were_promised_exist() -> None:
    keys = {key for command in COMMANDS for key in command.keys.split(",")}
    promised = "h j k l up down left right enter escape slash n N g G c d f m r s y x q".split()
    promised += ["left_square_bracket", "right_square_bracket", "question_mark", "ctrl+z"]
    promised += list("123456")
    assert sorted(set(promised) - keys) == []
