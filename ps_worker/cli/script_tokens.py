"""Command lines that run a script: what is ours and what is the script's."""

from collections.abc import Sequence

ALONE = ("--help", "-h", "--version", "--profile")  # the flags without a value


def mark_script(tokens: Sequence[str]) -> list[str]:
    """Return the tokens with `--` before the script, so that what follows it is the script's: the first that is no flag nor a flag's value.

    >>> mark_script(["--servers", "2", "train.py", "--servers", "9"])
    ['--servers', '2', '--', 'train.py', '--servers', '9']
    """
    script = 0
    while script < len(tokens) and tokens[script].startswith("-"):
        if tokens[script] == "--":
            return list(tokens)
        script += 1 if "=" in tokens[script] or tokens[script] in ALONE else 2
    return [*tokens[:script], "--", *tokens[script:]] if script < len(tokens) else list(tokens)
