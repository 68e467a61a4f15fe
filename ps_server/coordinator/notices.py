"""What an operator must know although nobody asked."""

from ps_server.events import Note


class Notices:
    """`last`: the newest of those that were said, which GetCluster shows; each goes into the log once."""

    def __init__(self) -> None:
        self.last = ""
        self._unsaid: list[Note] = []

    def say(self, sentence: str) -> None:
        """Tell the operator."""
        self.last = sentence
        self._unsaid.append(Note(sentence))

    def mention(self, sentence: str) -> None:
        """Write a sentence into the log about which there is nothing to be done."""
        self._unsaid.append(Note(sentence, is_warning=False))

    def take(self) -> list[Note]:
        """Return what has been said since it was taken last."""
        unsaid, self._unsaid = self._unsaid, []
        return unsaid
