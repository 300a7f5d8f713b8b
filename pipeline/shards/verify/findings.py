"""What is found wrong with a shard, and where."""

from __future__ import annotations

from dataclasses import dataclass, field

MISSING = "the manifest names this shard, but it is not there; copy or rebuild it"
MAX_PROBLEMS = 50  # of one shard; a shard that is wrong throughout says so in few lines


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and where: ``member`` and ``offset`` (bytes from the start of the file) are None where unknown."""

    shard: str
    member: str | None
    offset: int | None
    message: str

    def __str__(self) -> str:
        member = f", member {self.member}" if self.member else ""
        offset = f", byte {self.offset}" if self.offset is not None else ""
        return f"{self.shard}{member}{offset}: {self.message}"


@dataclass(frozen=True, slots=True)
class Contents:
    """What the manifest says of every document: dtype of the tokens, vocabulary size, end-of-text id."""

    dtype: str | None = None
    vocab_size: int | None = None
    eos_id: int | None = None


@dataclass(slots=True)
class ShardCheck:
    """The findings on one shard: its problems, and what was counted while looking for them."""

    name: str
    problems: list[Problem] = field(default_factory=list)
    omitted: int = 0
    bytes: int = 0
    sha256: str | None = None
    first_key: str = ""
    last_key: str = ""

    def add(self, member: str | None, offset: int | None, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(self.name, member, offset, message))
        else:
            self.omitted += 1

    def add_error(self, error: Exception, member: str | None = None) -> None:
        """Add what an error says, without the name of the shard in front."""
        self.add(member, None, str(error).removeprefix(f"{self.name}: "))
