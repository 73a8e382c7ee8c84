"""Pieces of a graph: what hangs together, and which pieces may be drawn as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence


def connected_pieces(
    names: Sequence[str],
    inputs_of: Mapping[str, Sequence[str]],
    may_share: Callable[[str, str], bool],
) -> dict[str, str]:
    """A name for each connected piece of nodes that may share a box with their inputs."""
    parent = {name: name for name in names}

    def find(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for name in names:
        for source in inputs_of[name]:
            if may_share(source, name):
                parent[find(name)] = find(source)
    return {name: find(name) for name in names}


def merge_independent(
    pieces: Sequence[Sequence[str]],
    users_of: Mapping[str, Sequence[str]],
    level_of: Mapping[str, int],
) -> list[list[str]]:
    """Join pieces of one module unless a path leads from one to the other.

    Two calls of a module stay two boxes; the parts of one call become one. Levels never
    fall along a path, which ends the search early.
    """
    clusters: list[list[str]] = []
    for piece in pieces:
        for cluster in clusters:
            apart = _reaches(cluster, piece, users_of, level_of) or _reaches(
                piece, cluster, users_of, level_of
            )
            if not apart:
                cluster.extend(piece)
                break
        else:
            clusters.append(list(piece))
    return clusters


def _reaches(
    sources: Iterable[str],
    targets: Iterable[str],
    users_of: Mapping[str, Sequence[str]],
    level_of: Mapping[str, int],
) -> bool:
    wanted = set(targets)
    highest = max(level_of[name] for name in wanted)
    waiting = list(sources)
    seen = set(waiting)
    while waiting:
        for user in users_of.get(waiting.pop(), ()):
            if user in wanted:
                return True
            if user not in seen and level_of[user] <= highest:
                seen.add(user)
                waiting.append(user)
    return False
