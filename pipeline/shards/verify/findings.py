"""Problems of shards, and the findings on one shard."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..manifest import Manifest

MISSING = "the manifest names this shard, but it is not there; copy or rebuild it"
MAX_PROBLEMS = 50  # listed for one shard


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem and its place: ``member`` and ``offset`` (bytes from the start of the file) are None if unknown."""

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
    """The manifest's values for all documents: dtype of the tokens, vocabulary size, end-of-text id.

    ``redacted``: the numbers of the redacted documents of one shard. ``ends``: whether documents end with the end-of-text id.
    """

    dtype: str | None = None
    vocab_size: int | None = None
    eos_id: int | None = None
    redacted: tuple[int, ...] = ()
    ends: bool = True

    @classmethod
    def of(cls, manifest: Manifest) -> ExpectedTokens:
        """Return the values of a manifest; no document of a build with ``eos="never"`` has to end with the id."""
        tokenizer, ends = manifest.tokenizer, manifest.recipe.get("settings", {}).get("eos") != "never"
        return cls(manifest.dtype, tokenizer.get("vocab_size"), tokenizer.get("eos_id"), ends=ends)


@dataclass(slots=True)
class ShardCheck:
    """The findings on one shard: its problems, its hash, its first and last key."""

    name: str
    problems: list[Problem] = field(default_factory=list)
    sha256: str | None = None
    first_key: str = ""
    last_key: str = ""

    def add(self, member: str | None, offset: int | None, message: str) -> None:
        self.problems.append(Problem(self.name, member, offset, message))

    def add_error(self, error: Exception, member: str | None = None) -> None:
        """Add the message of an error, without the shard's name in front."""
        self.add(member, None, str(error).removeprefix(f"{self.name}: "))

    def shorten(self) -> None:
        """Sort the problems by offset, keep ``MAX_PROBLEMS`` of them, and add how many more there are."""
        self.problems.sort(key=lambda problem: (problem.offset is None, problem.offset or 0))
        more = len(self.problems) - MAX_PROBLEMS
        if more > 0:
            del self.problems[MAX_PROBLEMS:]
            self.add(None, None, f"{more} more problems of this shard not listed")
