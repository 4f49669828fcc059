"""Answers as small files in a folder, one for each case, named by its key. A file that is damaged counts as absent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import orjson

from fairlead.study.reproduce.case import Answer, Case, key_of, settings_of
from fairlead.study.reproduce.world import World
from fairlead.whole import write_whole


@dataclass(frozen=True)
class Store:
    folder: Path
    world: World

    def path(self, case: Case) -> Path:
        return self.folder / f"{key_of(case, self.world)}.json"

    def read(self, case: Case) -> Answer | None:
        try:
            content = orjson.loads(self.path(case).read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None
        if not isinstance(content, dict) or not isinstance(answer := content.get("answer"), dict):
            return None
        return answer if content.get("check") == _check(answer) else None

    def write(self, case: Case, answer: Answer) -> Answer:
        """Keep it; what comes back is what reading it later will give."""
        kept: Answer = orjson.loads(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))
        write_whole(self.path(case), orjson.dumps({"case": settings_of(case), "check": _check(kept), "answer": kept}))
        return kept


def _check(answer: Answer) -> str:
    return hashlib.sha256(orjson.dumps(answer, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
