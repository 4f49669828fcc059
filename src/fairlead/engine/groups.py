"""Groups of jobs, by their codes. A group lives while anybody of it is at the door or inside; a job that comes to its name
afterwards begins it anew, and nobody from before counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Groups:
    sizes: dict[int, int] = field(default_factory=dict)  # how many came
    since: dict[int, int] = field(default_factory=dict)  # the number of the first of them
    there: dict[int, int] = field(default_factory=dict)  # how many have not ended
    through: dict[int, set[int]] = field(default_factory=dict)  # who did all their steps, of groups that live

    def enter(self, group: int, number: int) -> None:
        if not self.there.get(group):
            self.sizes[group], self.since[group], self.there[group] = 0, number, 0
        self.sizes[group] += 1
        self.there[group] += 1

    def leave(self, group: int, number: int, *, whole: bool) -> None:
        """A job ends, with all its steps or without."""
        if group not in self.there:
            return  # it is in none
        self.there[group] -= 1
        if not self.there[group]:
            self.through.pop(group, None)
        elif whole:
            self.through.setdefault(group, set()).add(number)

    @property
    def all_through(self) -> list[int]:
        return sorted(number for numbers in self.through.values() for number in numbers)
