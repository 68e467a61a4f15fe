"""The memory of processes and of the machine."""

from pathlib import Path


def begin_peak(pid: int) -> None:
    """Let the most memory that a process held count from here."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process held since then."""
    return _value(Path(f"/proc/{pid}/status"), "VmHWM")


def held_bytes(pid: int) -> int:
    """Return the memory that a process holds now, what it shares with others included."""
    return _value(Path(f"/proc/{pid}/status"), "VmRSS")


def available_bytes() -> int:
    """Return the memory that this machine could give to new processes."""
    return _value(Path("/proc/meminfo"), "MemAvailable")


def _value(path: Path, name: str) -> int:
    (line,) = [line for line in path.read_text().splitlines() if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])
