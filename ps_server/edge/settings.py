"""How a process is set: by flags, environment variables and a TOML file, in this order of precedence, then by defaults.

A setting is declared once, as a field below; its flag (`--log-format`), its variable (`ROWSTEAD_SERVER_LOG_FORMAT`) and its key in the TOML
file (`log_format`) follow from the name.
"""

import os
import socket
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from ps_proto.address import split_address
from ps_proto.plugins import split_names
from ps_server.edge.address import is_wildcard
from ps_server.storage.roots import parse_options

CONFIG = "config"  # names the TOML file itself; a flag or a variable, never a key


class SettingsError(Exception):
    """Settings that make no sense; prints one sentence for each that is wrong."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


def _check_address(address: str) -> str:
    split_address(address)
    return address


def _split_text(names: object) -> object:
    return split_names(names) if isinstance(names, str) else names


def _check_options(options: tuple[str, ...]) -> tuple[str, ...]:
    parse_options(options)
    return options


Address = Annotated[str, AfterValidator(_check_address)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_text)]  # a list in TOML, text with commas elsewhere
Options = Annotated[Names, AfterValidator(_check_options)]


class ProcessSettings(BaseModel):
    """What every process of ours can be told."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    variables: ClassVar[str]  # what the names of its environment variables begin with

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(0, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    log_format: Literal["text", "json"] = Field("text", description="Log lines for people (text) or for machines (json).")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least level that is logged.")
    exit_with_parent: int | None = Field(None, ge=1, description="Process id of the parent; stop once it is gone.")
    announce: str | None = Field(
        None, min_length=1, description="File, or number of an open file descriptor, to write the address to once the port is bound."
    )
    plugins: Names = Field((), description="Modules with optimizers and initializers of your own, to import at start; commas between them.")
    checkpoint_options: Options = Field(
        (), description="Options of the object store that checkpoints lie in, as aws_region=eu-west-1; commas between them."
    )

    def store_options(self) -> dict[str, str]:
        """Return `checkpoint_options` by name."""
        return parse_options(self.checkpoint_options)


class ServerSettings(ProcessSettings):
    """What a server can be told."""

    variables = "ROWSTEAD_SERVER_"

    coordinator: Address = Field(description="The coordinator's host:port.")
    name: str = Field(
        default_factory=lambda: f"server-{socket.gethostname()}-{os.getpid()}",
        max_length=256,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="Name in the cluster, which decides where its rows lie; by default made of host name and process id.",
    )
    weight: float = Field(1.0, gt=0, description="Share of the rows, relative to the other servers.")
    advertise: Address | None = Field(None, description="host:port that others reach this server at, where it is not the one listened on.")
    max_request_bytes: int = Field(8 * 2**30, ge=1, description="The most bytes of ids and rows in one request.")
    lane_port: int = Field(0, ge=0, le=65_535, description="Port of the fast lane, on the same host; 0 takes a free one.")
    rows_max: int | None = Field(None, ge=1, description="The most rows that a table may have on this server.")

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.advertise is None and is_wildcard(self.host):
            raise ValueError(f"advertise is missing: nobody can connect to {self.host}, so say at which host:port others can.")
        return self


AnySettings = TypeVar("AnySettings", bound=ProcessSettings)


def load(model: type[AnySettings], flags: Mapping[str, str | None], environment: Mapping[str, str]) -> AnySettings:
    """Return the settings that flags, environment and the TOML file named by `config` make together.

    `flags` by field name, None where not given; an empty environment variable counts as not given. Raises SettingsError.
    """
    given: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, values in _sources(model, flags, environment):
        for name, value in values.items():
            if name not in given:
                given[name] = value
                origins[name] = origin
    try:
        return model(**given)
    except ValidationError as error:
        raise SettingsError([_sentence(model, detail, origins) for detail in error.errors()]) from None


def flag_of(name: str) -> str:
    """Return the flag that sets the field `name`."""
    return "--" + name.replace("_", "-")


def variable_of(model: type[ProcessSettings], name: str) -> str:
    """Return the environment variable that sets the field `name`."""
    return model.variables + name.upper()


def _sources(
    model: type[ProcessSettings], flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    by_flag = {name: value for name, value in flags.items() if value is not None}
    config = by_flag.pop(CONFIG, None) or environment.get(variable_of(model, CONFIG))
    yield "its flag", by_flag
    # Only the names that we know: others may share the prefix, as those that Kubernetes sets for a service named rowstead-server.
    names = {name: variable_of(model, name) for name in model.model_fields}
    yield "the environment", {name: environment[variable] for name, variable in names.items() if environment.get(variable)}
    if config is not None:
        yield config, _read(Path(config))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError([f"config is {str(path)!r}, which cannot be read: {error.strerror}."]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"config is {str(path)!r}, which is no TOML file: {error}."]) from None


def _sentence(model: type[ProcessSettings], detail: ErrorDetails, origins: Mapping[str, str]) -> str:
    if not detail["loc"]:  # a check of several fields says it all
        return detail["msg"].removeprefix("Value error, ")
    name = str(detail["loc"][0])
    origin = origins.get(name, "")
    match detail["type"]:
        case "missing":
            return f"{name} is missing: give {flag_of(name)}, set {variable_of(model, name)}, or write it to the file that --config names."
        case "extra_forbidden":
            return f"{name} in {origin} is not a setting; there are {', '.join(model.model_fields)}."
    source = {"its flag": flag_of(name), "the environment": variable_of(model, name)}.get(origin, origin)
    wanted = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{name} is {detail['input']!r} (from {source}), but {wanted}."
