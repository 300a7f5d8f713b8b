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
class ExpectedTokens:
    """What the manifest says of every document: dtype of the tokens, vocabulary size, end-of-text id."""

    dtype: str | None = None
    vocab_size: int | None = None
    eos_id: int | None = None


@dataclass(slots=True)
class ShardCheck:
    """The findings on one shard: its problems, its hash, and the first and the last of its keys."""

    name: str
    problems: list[Problem] = field(default_factory=list)
    sha256: str | None = None
    first_key: str = ""
    last_key: str = ""

    def add(self, member: str | None, offset: int | None, message: str) -> None:
        self.problems.append(Problem(self.name, member, offset, message))

    def add_error(self, error: Exception, member: str | None = None) -> None:
        """Add what an error says, without the name of the shard in front."""
        self.add(member, None, str(error).removeprefix(f"{self.name}: "))

    def shorten(self) -> None:
        """Order the problems by their bytes; keep ``MAX_PROBLEMS`` of them, and say how many more there are."""
        self.problems.sort(key=lambda problem: (problem.offset is None, problem.offset or 0))
        more = len(self.problems) - MAX_PROBLEMS
        if more > 0:
            del self.problems[MAX_PROBLEMS:]
            self.add(None, None, f"{more} more problems of this shard not listed")
