"""Jobs with backup workers in the simulator: what each server folded, and the slow twin that folds exactly that."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs import checksum
from naive.training import train_by
from ps_proto.requests import Decision, Finished
from ps_server.shard.clocks import Clocks
from ps_server.shard.deciding import Decider
from ps_server.shard.shard import Shard
from sim.cluster import Simulation
from sim.nodes import WorkerNode
from sim.scripts import Batches, trained


class NotingDecider(Decider):
    """Notes what each step is folded from, and how large its roster was."""

    folded: list[Decision]
    rosters: list[int]

    def next(self, step: int, clocks: Clocks, facts: Mapping[int, Finished]) -> Decision | None:
        decision = super().next(step, clocks, facts)
        if decision is not None:
            self.folded.append(decision)
            self.rosters.append(len(clocks.roster(step)))
        return decision


class NotingShard(Shard):
    """A server that notes its folds."""

    decider_class: type[NotingDecider] = NotingDecider

    def __init__(self, server: str, rows_max: int | None = None, awaits_registration: bool = False) -> None:
        super().__init__(server, rows_max, awaits_registration=awaits_registration)
        self.decider = self.decider_class(self.membership, self.catalog, self.steps._wishes, self.steps._orders, self.counters)
        self.decider.folded, self.decider.rosters = [], []
        self.steps.decider = self.decider


@dataclass
class Checked:
    """A run whose every step is checked against the slow twin. `batches`: filled by the scripts."""

    sim: Simulation
    backup_workers: int
    batches: Batches = field(default_factory=dict)

    def finish(self, *nodes: WorkerNode) -> None:
        """Let the workers end and the last decision reach every server, then compare."""
        self.sim.run()
        assert [node.error for node in nodes] == [None] * len(nodes), f"seed {self.sim.seed}"
        shards = self.shards
        last = max(shard.step for shard in shards)
        self.sim.run(until=lambda: all(shard.step == last for shard in shards))
        self.sim.check()
        assert self.faults() == [], f"seed {self.sim.seed}"

    def roles(self) -> tuple[str, list[str]]:
        """Let the servers register; return the one that decides, and the others."""
        self.sim.run(until=lambda: self.sim.coordinator.shard_map is not None)
        deciding = [shard.server for shard in self.shards if shard.membership.is_first_owner]
        return deciding[0], [name for name in self.sim.shards if name not in deciding]

    @property
    def shards(self) -> list[NotingShard]:
        return [shard for shard in self.sim.shards.values() if isinstance(shard, NotingShard)]

    @property
    def folded(self) -> list[Decision]:
        """What the steps were folded from."""
        return self.shards[0].decider.folded

    def faults(self) -> list[str]:
        """Return what is wrong with the folds; [] where nothing is."""
        faults = [f"{shard.server} folded {shard.decider.folded}" for shard in self.shards if shard.decider.folded != self.folded]
        (decider,) = [shard.decider for shard in self.shards if shard.membership.is_first_owner]
        for decision, roster in zip(decider.folded, decider.rosters, strict=True):
            if decision.ranks_count != max(1, roster - self.backup_workers):
                faults.append(f"step {decision.step} is over {decision.ranks_count} of {roster}")
        wrong = [(rank, decision.step) for decision in self.folded for rank in decision.ranks if (rank, decision.step) not in self.batches]
        if wrong:
            return [*faults, f"folded from {wrong}, which were never read for"]
        steps = [({rank: self.batches[rank, item.step] for rank in item.ranks}, item.ranks_count) for item in self.folded]
        if checksum(trained(self.sim)) != checksum(train_by(steps)):
            faults.append("rows that are not the slow twin's")
        return faults
