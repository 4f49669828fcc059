"""Jobs at the door in several lines, each with a limit of its own: who enters is the front of each line, as far as there is
room. What a line stands for (a user, a model) and what is counted in it is said by who calls this."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.held_back import HeldBack
from fairlead.core.plan import Admitted
from fairlead.core.reasons import Reason, Unplaced


def admit_in_lines(numbers: Ints, line: Ints, asks: Ints, inside: Ints, limits: Floats, what: Callable[[int], str]) -> Admitted:
    """Job i, in order of submission, stands in line `line[i]` and takes `asks[i]` of what the line's jobs may take together,
    `limits[line]`, of which those inside have taken `inside[line]`. Nobody overtakes in a line. Who asks for more than the
    limit enters when nobody of its line is inside, so that it cannot wait for ever. `what(line)` is counted, in words."""
    short = line.astype(np.uint16) if len(limits) <= 1 << 16 else line  # numpy sorts these in a tenth of the time
    order = short.argsort(kind="stable")
    mine, wanted = line[order], asks[order]
    total = wanted.cumsum()
    first = mine.searchsorted(mine)  # where each one's line begins
    demand = inside[mine] + total - total[first] + wanted[first]
    enters = demand <= limits[mine]
    enters |= (first == np.arange(len(mine))) & (inside[mine] == 0)
    entering = np.zeros(len(line), dtype=np.bool_)
    entering[order[enters]] = True
    if enters.all():
        return Admitted(numbers)

    taken = inside + np.bincount(line[entering], asks[entering], minlength=len(inside))

    def why(which: int) -> Reason:
        return Unplaced.not_admitted(what(which), demand=float(taken[which]), limit=float(limits[which]))

    return Admitted(numbers[entering], HeldBack(numbers[~entering], line[~entering], why))
