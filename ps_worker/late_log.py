"""What a worker in a job with backup workers says in its log: that bits depend on timing, and how often it is late (R9)."""

import logging

from ps_worker.protocol import Worker

log = logging.getLogger("rowstead")


class LateLog:
    """Of one worker. Says nothing without backup workers."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._said = 0

    def joined(self) -> None:
        """Say from which step on two runs may differ."""
        if self._worker.backup_workers:
            log.info(
                "Rank %d joined a job of backup_workers=%d: from step %d on, the weights depend on which ranks are first.",
                self._worker.rank,
                self._worker.backup_workers,
                self._worker.clock,
            )

    def ended(self) -> None:
        """Say that a step was late: the first, then each whose number is a power of two."""
        late = self._worker.late_steps
        if late > self._said and late & (late - 1) == 0:
            log.info(
                "Rank %d was late, for the %d. time: its gradients of that step do not count. It goes on at step %d.",
                self._worker.rank,
                late,
                self._worker.clock,
            )
        self._said = late
