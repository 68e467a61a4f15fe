"""Which program does which task."""

from collections.abc import Callable
from typing import Any

from ps_server.storage.finding import find
from ps_server.storage.loading import load_part
from ps_server.storage.probing import check_parts, probe
from ps_server.storage.program import Program
from ps_server.storage.publishing import abandon, publish
from ps_server.storage.saving import save_part
from ps_server.tasks import AbandonCheckpoint, CheckParts, FindCheckpoint, LoadPart, ProbeRoot, PublishCheckpoint, SavePart

PROGRAMS: dict[type, Callable[[Any], Program[Any]]] = {
    SavePart: save_part,
    LoadPart: load_part,
    PublishCheckpoint: publish,
    AbandonCheckpoint: abandon,
    FindCheckpoint: find,
    ProbeRoot: probe,
    CheckParts: check_parts,
}
