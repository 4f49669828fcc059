"""A policy in a file of its own, as in `mine.py:MyPolicy`: the class by the path of its file, for the command line.

Loading executes the file. So only options of commands name one: scheduler files, journals and the HTTP API cannot."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
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
        """Return the class; its errors and wrong answers name the file. The file is executed once in each process.

        Raises:
            FairleadError: There is no such file or class, the file raises an error, or the class is not a policy.
        """
        module, file = sys.modules.get(self._module) or self._execute(), self.path.name
        own = [name for name, value in vars(module).items() if _methods(value) and value.__module__ == self._module]
        if not self.name:
            raise InputError(file, f"a class of the file, as in {file}:{own[0] if own else 'MyPolicy'}")
        if not hasattr(module, self.name):
            raise UnknownName("class", self.name, own, f"{file}: ")
        found = getattr(module, self.name)
        if not (methods := _methods(found)):
            raise InputError(
                f"{file}: {self.name}", "a class with a method select(self, view, memo) that returns (selection, memo)"
            )
        for method in methods:
            try:
                inspect.signature(getattr(found, method)).bind(None, None, None)
            except TypeError:
                raise InputError(f"{file}: {self.name}.{method}", "the arguments (self, view, memo)") from None
        body = {"__module__": self._module, "__doc__": found.__doc__}
        return type(self.name, (found,), body | {method: self._checked(found, method) for method in methods})

    @property
    def _module(self) -> str:
        return f"fairlead policy file {self.path}"

    def _execute(self) -> ModuleType:
        spec = spec_from_file_location(self._module, self.path)
        if not self.path.is_file() or spec is None or spec.loader is None:
            raise FairleadError(f"no file {self.path.name} in {self.path.parent}; a policy in a file is FILE.py:CLASS")
        module = sys.modules[self._module] = module_from_spec(spec)  # dataclasses look for their module there
        if str(self.path.parent) not in sys.path:
            sys.path.append(str(self.path.parent))  # the file may import its neighbours
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[self._module]
            raise self._error(error) from error
        return module

    def _checked(self, found: type[Any], method: str) -> Any:
        def call(policy: Any, view: Any, memo: Any) -> Any:
            try:
                answer = getattr(found, method)(policy, view, memo)
            except FairleadError:
                raise
            except Exception as error:
                raise self._error(error) from error
            wanted = _ANSWERS[method]
            if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], wanted)):
                mend = f"a pair ({wanted.__name__}, memo), not a value of type {type(answer).__name__}"
                raise InputError(f"{self.path.name}: the answer of {self.name}.{method}", mend)
            return answer

        return call

    def _error(self, error: Exception) -> FairleadError:
        """The error in one line, with the last line of the file that was executed."""
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(self.path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 1
        text = error.msg if isinstance(error, SyntaxError) else error
        return FairleadError(f"{self.path.name}:{line}: {type(error).__name__}: {text}")


def _methods(value: Any) -> list[str]:
    return [name for name in _ANSWERS if isinstance(value, type) and callable(getattr(value, name, None))]
