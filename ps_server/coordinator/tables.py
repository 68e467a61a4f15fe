"""The table registry: which tables there are, and which of them every server has."""

from collections.abc import Iterable, Mapping

from ps_proto.errors import InvalidRequest, ParameterServerError, TableMismatch
from ps_proto.requests import CreateTable, TableCreated
from ps_proto.values import Mode, Sync, TableSpec
from ps_server.coordinator.journal import Journal
from ps_server.coordinator.members import Members
from ps_server.coordinator.numbering import Numbering
from ps_server.coordinator.orders import Orders
from ps_server.coordinator.plans import Plan, Plans
from ps_server.coordinator.stored import StoredTable, table_key


class TableRegistry:
    """`specs`: every table that was asked for and that no server refused, by name, as its first creator wanted it."""

    def __init__(
        self, stored: Mapping[str, StoredTable], members: Members, plans: Plans, numbering: Numbering, orders: Orders, journal: Journal
    ) -> None:
        self.specs = {name: table.spec for name, table in stored.items()}
        self.job_mode: Mode | None = None  # of the job that runs, or ran last
        self._installed = {name for name, table in stored.items() if table.is_installed}  # tables that every server has acknowledged
        # table -> the number of its creation, by which servers tell a late order of another one
        self._creations = {name: table.creation for name, table in stored.items()}
        self._numbering = numbering
        self._orders = orders
        self._journal = journal
        self._members = members
        self._plans = plans

    def create(self, request: int, body: CreateTable, now_s: float) -> None:
        """Plan to create a table on every server, or to check that the one that exists is the same."""
        self._members.check_map()
        _check_mode("TableSpec.mode", body.spec, self.job_mode)
        self._plans.add(body.spec, request, body.wait_s, now_s, lambda: self._create(body.spec))

    def _create(self, spec: TableSpec) -> Plan:
        have = self.specs.get(spec.name)
        if have is None:
            self._creations[spec.name] = self._numbering.next_creation()
            have = self.specs[spec.name] = spec
            self._keep(spec.name)
        field_name = have.difference(spec)
        if field_name is not None:
            raise TableMismatch(spec.name, field_name, have.described(field_name), spec.described(field_name))
        if spec.name not in self._installed:
            try:
                yield self._orders.install_table(have, self._creations[spec.name])
            except ParameterServerError:  # a server will never have it, and nobody was told that it is there: the name is free again
                del self.specs[spec.name], self._creations[spec.name]
                self._journal.delete(table_key(spec.name))
                raise
            self._installed.add(spec.name)
            self._keep(spec.name)
        return TableCreated(have)

    def _keep(self, table: str) -> None:
        self._journal.put(table_key(table), StoredTable(self.specs[table], self._creations[table], table in self._installed))

    def folds(self, job: Mode) -> bool:
        """Say whether servers may have pushes that wait for the end of a step, in a job of this mode."""
        return any([isinstance(mode, Sync) for mode in (job, *[spec.mode for spec in self.specs.values()])])

    def check_job(self, mode: Mode) -> None:
        """Raise InvalidRequest where a job of this mode contradicts a table that is there."""
        for spec in self.specs.values():
            _check_mode("mode", spec, mode)

    def restore(self, specs: Iterable[TableSpec]) -> tuple[TableSpec, ...]:
        """Take the tables of a checkpoint beside those that are there; return all that every server is to have."""
        for spec in specs:
            if spec.name not in self._installed:
                self.specs[spec.name] = spec
                self._creations.setdefault(spec.name, self._numbering.next_creation())
                self._installed.add(spec.name)
                self._keep(spec.name)
        return self.ready()

    def ready(self) -> tuple[TableSpec, ...]:
        """Return the tables that every server has: one that is on its way would be unknown to some."""
        return tuple([self.specs[name] for name in sorted(self._installed)])


def _check_mode(field: str, spec: TableSpec, job: Mode | None) -> None:
    """Raise InvalidRequest for a table that wants backup workers which its job does not have: how many there are is the job's (R9)."""
    wanted = spec.mode.backup_workers if isinstance(spec.mode, Sync) else 0
    if wanted and job != spec.mode:
        want = f"one mode: table {spec.name!r} has {spec.mode}; Sync() means synchronous as the job is"
        raise InvalidRequest(field, f"{spec.mode} in a job of {job}", want)
