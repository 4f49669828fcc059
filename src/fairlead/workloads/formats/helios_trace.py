"""SenseTime's Helios logs (`cluster_log.csv`), and the tables of the same columns that came with Lucid."""

from __future__ import annotations

import re
from pathlib import Path

from fairlead.core.errors import InputError
from fairlead.workloads.formats.base import Submission, first_row_has, from_the_earliest
from fairlead.workloads.formats.text_fields import (
    BadField,
    LeftOut,
    accelerators,
    amount,
    check_width,
    columns,
    header_of,
    moment,
    named,
    optional_columns,
    seconds,
    table_rows,
)
from fairlead.workloads.trace import OnBad, Trace

_NEEDED = ("gpu_num", "submit_time", "duration")
_SECONDS = re.compile(r"\d+(\.\d*)?")
_OPTIONAL = ("job_id", "jobname", "user", "vc", "cpu_num")


class HeliosTrace:
    """Jobs without accelerators, and those that never ran, are outside of the question: they are listed as left out."""

    name = "helios"
    summary = "Helios/Lucid cluster_log.csv: job_id, user, vc, gpu_num, cpu_num, state, submit_time, duration, …"

    def sniff(self, path: Path, head: str) -> bool:
        return first_row_has(head, _NEEDED)

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        rows = table_rows(path, on_bad)
        top, names = header_of(rows, path)
        gpus_at, submit_at, duration_at = columns(names, _NEEDED, path, top)
        id_at, jobname_at, user_at, vc_at, cpus_at = optional_columns(names, _OPTIONAL)
        name_at = jobname_at if id_at is None else id_at
        width = len(names)
        dated: bool | None = None
        submissions: list[Submission] = []
        left_out: list[InputError] = []
        for line, row in rows:
            try:
                check_width(row, width)
                gpus, duration_s = accelerators("gpu_num", row[gpus_at]), seconds("duration", row[duration_at])
                if gpus == 0:
                    raise LeftOut("gpu_num", row[gpus_at], "a job with accelerators")
                if duration_s == 0:
                    raise LeftOut("duration", row[duration_at], "a job that ran")
                submit = row[submit_at]
                if dated is None:  # Lucid's own tables count seconds instead
                    dated = _SECONDS.fullmatch(submit) is None
                submissions.append(
                    Submission(
                        line,
                        moment("submit_time", submit) if dated else seconds("submit_time", submit),
                        f"job-{line - top - 1}" if name_at is None else named(names[name_at], row[name_at]),
                        duration_s,
                        gpus,
                        "" if user_at is None else row[user_at],
                        "" if vc_at is None else row[vc_at],
                        cpus=0.0 if cpus_at is None else amount("cpu_num", row[cpus_at]) / gpus,
                    )
                )
            except LeftOut as why:
                left_out.append(why.at(path, line))
            except BadField as bad:
                on_bad(bad.at(path, line))
        return from_the_earliest(submissions, path, on_bad, left_out=left_out, dated=bool(dated))
