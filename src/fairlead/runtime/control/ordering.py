"""The order of the jobs of one submission: whoever comes after another of them is numbered behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import HTTPException

from fairlead.runtime.tasks import TaskSpec


def in_order(tasks: Sequence[TaskSpec], known: Callable[[str], int]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Places in `tasks` as they are to be numbered, and for each whom it comes after: the number of a job that is there
    already, as `known` says, or -1 for the first of this order, -2 for the second, … Circles are refused."""
    place_of = {task.name: place for place, task in enumerate(tasks) if task.name}
    order: list[int] = []
    at: dict[int, int] = {}  # by place: where it stands in the order
    after: dict[int, tuple[int, ...]] = {}

    for begin in range(len(tasks)):
        path = [begin]
        while path:
            here = path[-1]
            ahead = [place_of[str(name)] for name in tasks[here].after if str(name) in place_of]
            missing = next((place for place in ahead if place not in at), None)
            if here in at:
                path.pop()
            elif missing is None:
                at[here] = len(order)
                order.append(here)
                names = [str(name) for name in tasks[here].after]
                after[here] = tuple(
                    dict.fromkeys(-1 - at[place_of[name]] if name in place_of else known(name) for name in names)
                )
                path.pop()
            elif missing in path:
                circle = [*path[path.index(missing) :], missing]
                raise HTTPException(422, f"after: {' after '.join(tasks[place].name for place in circle)} is a circle")
            else:
                path.append(missing)
    return order, [after[place] for place in order]
