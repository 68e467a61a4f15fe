"""Which release of ours this is."""

from importlib.metadata import PackageNotFoundError, version


def installed_release() -> str:
    """Return the version that is installed, for `--version`."""
    try:
        return version("rowstead")
    except PackageNotFoundError:
        return "a checkout that is not installed"
