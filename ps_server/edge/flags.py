"""A process's settings as flags of a command line."""

import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ps_server.edge.settings import CONFIG, AnySettings, ProcessSettings, SettingsError, flag_of, load, variable_of

WRONG_USAGE = 2  # the exit code


def with_flags(model: type[AnySettings]) -> Callable[[Callable[[AnySettings], int]], Callable[..., int]]:
    """Make a command that takes settings into one that cyclopts fills from flags; wrong settings end in a sentence and exit code 2.

    Flags stay strings here, so that a value is checked by the same code, and refused in the same words, wherever it comes from.
    """

    def decorate(run: Callable[[AnySettings], int]) -> Callable[..., int]:
        def command(**flags: str | None) -> int:
            try:
                settings = load(model, flags, os.environ)
            except SettingsError as error:
                print(error, file=sys.stderr)
                return WRONG_USAGE
            return run(settings)

        parameters = [_parameter(CONFIG, f"TOML file with settings, as log_format = 'json'. [env: {variable_of(model, CONFIG)}]")]
        parameters += [_parameter(name, _help(model, name, field)) for name, field in model.model_fields.items()]
        command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]  # read by inspect
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": int}
        command.__name__, command.__doc__, command.__module__ = run.__name__, run.__doc__, run.__module__
        return command

    return decorate


def _parameter(name: str, text: str) -> inspect.Parameter:
    annotation = Annotated[str | None, Parameter(name=flag_of(name), help=text, show_default=False)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(model: type[ProcessSettings], name: str, field: FieldInfo) -> str:
    facts = [f"env: {variable_of(model, name)}"]
    if field.is_required():
        facts.insert(0, "required")
    elif field.default not in (None, (), PydanticUndefined):
        facts.insert(0, f"default: {field.default}")
    return f"{field.description} [{'; '.join(facts)}]"
