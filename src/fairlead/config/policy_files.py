"""A policy in a file of its own, as in `mine.py:MyPolicy`: the class by the path of its file, for the command line.

Loading executes the file. So only options of commands name one: scheduler files, journals and the HTTP API cannot."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from typing import Any

from fairlead.core.allocation import Allocation
from fairlead.core.errors import FairleadError, InputError, UnknownName
from fairlead.core.plan import Selection

_ANSWERS = {"select": Selection, "allocate": Allocation}


@dataclass(frozen=True)
class PolicyFile:
    """A class by the path of its file and its name. Other processes load it again."""

    path: Path
    name: str

    def load(self) -> type[Any]:
        """Return the class; its errors and wrong answers are FairleadErrors that name the file. It is executed once."""
        key, file = f"fairlead policy file {self.path}", self.path.name
        if key not in sys.modules:
            spec = spec_from_file_location(key, self.path)
            if not self.path.is_file() or spec is None or spec.loader is None:
                raise FairleadError(f"no file {file} in {self.path.parent}; a policy in a file is FILE.py:CLASS")
            sys.modules[key] = module_from_spec(spec)  # dataclasses look for their module there
            sys.path.append(str(self.path.parent))  # the file may import its neighbours
            try:
                with self._errors():
                    spec.loader.exec_module(sys.modules[key])
            except BaseException:
                del sys.modules[key]  # it may be mended and loaded again
                sys.path.remove(str(self.path.parent))
                raise
        known = vars(sys.modules[key])
        own = [name for name, value in known.items() if _methods(value) and value.__module__ == key]
        if not self.name:
            raise InputError(file, f"a class of the file, as in {file}:{own[0] if own else 'MyPolicy'}")
        if self.name not in known:
            raise UnknownName("class", self.name, own, f"{file}: ")
        found = known[self.name]
        if not _methods(found):
            wanted = "a class with a method select(self, view, memo) that returns (selection, memo)"
            raise InputError(f"{file}: {self.name}", wanted)
        checked = {method: self._checked(found, method) for method in _methods(found)}
        return type(self.name, (found,), {"__module__": key, "__doc__": found.__doc__, **checked})

    def _checked(self, found: type[Any], method: str) -> Any:
        where, kind, function = f"{self.path.name}: {self.name}.{method}", _ANSWERS[method], getattr(found, method)
        if len(inspect.signature(function).parameters) != 3:
            raise InputError(where, "the arguments (self, view, memo)")

        def call(policy: Any, view: Any, memo: Any) -> Any:
            with self._errors():
                answer = function(policy, view, memo)
            if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], kind)):
                raise InputError(where, f"to return ({kind.__name__}, memo), not a value of type {type(answer).__name__}")
            return answer

        return call

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn an error into one line, with the last line of the file that was executed."""
        try:
            yield
        except FairleadError:
            raise
        except Exception as error:
            lines = [f":{frame.lineno}" for frame in extract_tb(error.__traceback__) if frame.filename == str(self.path)]
            raise FairleadError(f"{self.path.name}{''.join(lines[-1:])}: {type(error).__name__}: {error}") from error


def _methods(value: Any) -> list[str]:
    return [name for name in _ANSWERS if isinstance(value, type) and callable(getattr(value, name, None))]
