"""Measure ours and other people's parameter stores in turn, on the same work; print a table, and write JSON.

    python -m benchmarks.peers                                 every peer that is installed, some 20 minutes and 10 GB of memory
    python -m benchmarks.peers --peer torch.rpc --case W1      one peer, one case
    python -m benchmarks.peers --quick --json peers.json       small sizes: whether it runs and answers right, not how fast

One server and one client each, on loopback. Each peer runs as shipped, and with allocators that keep freed memory; its best has a star and
is to be quoted. Theirs are ids from 0, in the form that the peer likes best and made beforehand; ours are 62-bit ids and numpy arrays.
Exit code 0 where every answer was right, whether all peers are installed or not; 1 after a wrong one, or where a peer failed.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.bed import TRANSPORTS, Bed, bed
from benchmarks.case import WrongAnswer
from benchmarks.harness import measure
from benchmarks.machine import commit, describe_machine
from benchmarks.peers.beside import beside
from benchmarks.peers.memory import allocators
from benchmarks.peers.roster import PEERS, Peer
from benchmarks.peers.running import PeerFailed, running
from benchmarks.peers.table import HEAD, Line, as_json, lines_of, printed
from benchmarks.peers.work import WORKS, peer_sizes


def measure_peer(peer: Peer, memory: str, environment: Mapping[str, str], chosen: argparse.Namespace, shared: Bed) -> Iterator[Line]:
    """Yield the lines of a peer with one allocator; raises WrongAnswer, PeerFailed."""
    sizes = shared.sizes
    with running(peer, environment, chosen.quick, chosen.seed) as theirs:
        for case in [case for case in chosen.case or WORKS if case in peer.notes]:
            for transport in chosen.transport or peer.ours:
                with beside(case, shared, transport, theirs) as opened:
                    yield from lines_of(peer, memory, transport, measure(opened, sizes.rounds, sizes.warm_ups), sizes)


def measure_all(peers: Sequence[Peer], chosen: argparse.Namespace) -> tuple[list[Line], dict[str, str]]:
    """Measure these peers and print their lines; return the lines, and by peer what went wrong, after which the next one has its turn."""
    kept: list[Line] = []
    wrong: dict[str, str] = {}
    memories = {name: environment for name, environment in allocators().items() if name in (chosen.memory or allocators())}
    with bed(peer_sizes(chosen.quick), chosen.seed) as shared:
        for peer in peers:
            lines: list[Line] = []
            try:
                for memory, environment in memories.items():
                    lines.extend(measure_peer(peer, memory, environment, chosen, shared))
            except (WrongAnswer, PeerFailed) as error:
                wrong[peer.name] = str(error)
                print(f"{peer.name}: {error}", file=sys.stderr, flush=True)
            for line in printed(lines):
                print(line, flush=True)
            kept.extend(lines)
    return kept, wrong


def told(peer: Peer) -> str:
    """Return the version of a peer that is here, and what it does in each case."""
    return f"{peer.version()}; " + "; ".join(f"{case} {note}" for case, note in peer.notes.items())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Measure ours beside other people's parameter stores.")
    parser.add_argument("--peer", action="append", choices=[peer.name for peer in PEERS], help="this peer (may be repeated; default all)")
    parser.add_argument("--case", action="append", choices=list(WORKS), help="this case (may be repeated; default all)")
    parser.add_argument("--memory", action="append", choices=list(allocators()), help="the peer with this allocator (default all)")
    parser.add_argument("--transport", action="append", choices=TRANSPORTS, help="ours through this (default: what compares with the peer)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds: to see whether it runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    chosen = parser.parse_args(arguments)
    wanted = [peer for peer in PEERS if peer.name in (chosen.peer or [peer.name for peer in PEERS])]
    about = {"machine": describe_machine(), "commit": commit(), "seed": chosen.seed, "quick": chosen.quick}
    note = "; small sizes: the ratios mean nothing" if chosen.quick else ""
    print(f"{about['machine']}\ncommit {about['commit']}, seed {chosen.seed}{note}")
    absent = {peer.name: peer.absent() for peer in wanted}
    for peer in wanted:
        print(f"{peer.name}: {absent[peer.name] or told(peer)}")
    print(f"\n{HEAD}\n* its best, to be quoted", flush=True)
    present = [peer for peer in wanted if absent[peer.name] is None]
    lines, wrong = measure_all(present, chosen) if present else ([], {})
    if chosen.json is not None:
        peers = {peer.name: {"version": peer.version(), "absent": absent[peer.name], "wrong": wrong.get(peer.name)} for peer in wanted}
        chosen.json.write_text(json.dumps({**about, "peers": peers, "results": as_json(lines)}, indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
