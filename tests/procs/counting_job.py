"""A job that counts: each (rank, step) pushes ones, so that what is missing or double in the end shows in the sums.

Run under `rowstead launch`. Rows are minus the sum of what was pushed to them. Rank 0 prints them in the end.
"""

import json
import time

import numpy as np
import numpy.typing as npt

import ps_worker as ps

STEPS = 60
STEP_S = 0.03  # so that a job of so few steps lasts long enough to be killed within it
MEETS_EVERY = 6
IDS_COUNT = 300
TABLES: dict[str, ps.Mode | None] = {"bounded": None, "async": ps.Async()}  # the first as the job


def ids_of(rank: int, step: int, push: int) -> npt.NDArray[np.uint64]:
    """Return the ids of one of a step's two pushes, each once, over all servers."""
    rng = np.random.default_rng([rank, step, push])
    return rng.choice(IDS_COUNT, 40, replace=False).astype(np.uint64)


def main() -> None:
    with ps.init(mode=ps.BoundedStaleness(2)) as session:
        client = session.client
        for name, mode in TABLES.items():
            client.create_table(ps.TableSpec(name, dim=2, optimizer=ps.SGD(lr=1.0), mode=mode))
        for step in session.steps(STEPS):
            print(f"step {step} of {STEPS}", flush=True)
            time.sleep(STEP_S)
            for push in range(2):
                ids = ids_of(session.rank, step, push)
                client.pull({name: ids for name in TABLES})
                client.push({name: (ids, np.ones((ids.size, 2), np.float32)) for name in TABLES})
            client.end_step()
            if client.clock % MEETS_EVERY == 0:
                for _ in range(2):
                    time.sleep(STEP_S)
                    client.pull({name: ids for name in TABLES})
                    session.barrier()
        client.flush()
        session.barrier()
        if session.rank == 0:
            for name in TABLES:
                ids, rows = client.export(name)
                assert (rows[:, 0] == rows[:, 1]).all()
                counts = {str(row_id): -float(row) for row_id, row in zip(ids.tolist(), rows[:, 0], strict=True)}
                print(f"counts {name} {json.dumps(counts)}", flush=True)
        session.barrier()


if __name__ == "__main__":
    main()
