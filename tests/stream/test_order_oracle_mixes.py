"""The oracle of mixes and samples keeps the promises of the order, counted by brute force."""

from collections import Counter
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from tests import order_oracle as oracle
from tests.order_oracle import Options, Source, Stream
from tests.stream.order_oracle_mixes import Mix, Samples, quotas
from tests.stream.test_order_oracle import all_tokens, few, file_order, options, seeds, sources

fewest = settings(max_examples=15, deadline=None)  # a period of a mix takes milliseconds

# Section 8

NAMES = ("code", "web", "wiki")


@st.composite
def weightings(draw: st.DrawFn) -> dict[str, Fraction]:
    parts = draw(st.lists(st.integers(0, 5000) | st.sampled_from([0, 1]), min_size=3, max_size=3).filter(any))
    return {name: Fraction(part, sum(parts)) for name, part in zip(NAMES, parts, strict=True)}


@given(st.lists(st.integers(0, 10**6) | st.sampled_from([0, 1]), min_size=1, max_size=60).filter(any))
def test_quotas_sum_to_a_period_and_give_every_positive_weight_a_row(parts: list[int]) -> None:
    weights = {f"{j:02}": Fraction(part, sum(parts)) for j, part in enumerate(parts)}
    rows = quotas(weights)
    assert sum(rows.values()) == 4096
    assert all((rows[name] >= 1) == (weight > 0) for name, weight in weights.items())
    if all(weight == 0 or weight * 4096 >= 1 for weight in weights.values()):
        assert all(abs(rows[name] - weight * 4096) < 1 for name, weight in weights.items())


def test_quotas_follow_shares_and_ties_go_to_the_first_name() -> None:
    thirds = dict.fromkeys(("web", "code", "wiki"), Fraction(1, 3))
    assert quotas(thirds) == {"code": 1366, "web": 1365, "wiki": 1365}
    tiny = {"a": Fraction(1, 10**6), "b": Fraction(1, 2), "c": Fraction(1, 2) - Fraction(1, 10**6)}
    assert quotas(tiny) == {"a": 1, "b": 2048, "c": 2047}


def mix(changes: list[tuple[int, dict[str, Fraction]]], chosen: Options) -> Mix:
    corpora = {
        name: Source([oracle.memory_shard([[100 * j + k] * (k + 1) for k in range(9)], 2)], 2)
        for j, name in enumerate(NAMES, 1)
    }
    return Mix(corpora, changes, chosen)


@fewest
@given(weightings(), weightings(), st.integers(0, 14_000), st.integers(1, 3), seeds)
def test_sources_serve_their_own_indices_without_gaps_across_a_change(
    first: dict[str, Fraction], second: dict[str, Fraction], x: int, C: int, seed: int | None
) -> None:
    chosen = Options(lanes=C, seed=seed)
    changed, unchanged = mix([(0, first), (x, second)], chosen), mix([(0, first)], chosen)
    C = changed.lanes
    row_of_change = -(-x // C)
    rows = row_of_change + 4096
    served: Counter[tuple[str, int]] = Counter()
    for row in range(rows):
        for lane in range(C):
            i = row * C + lane
            name, index = changed.source_index(i)
            assert index == served[name, lane] * C + lane
            served[name, lane] += 1
            if row < row_of_change:
                assert (name, index) == unchanged.source_index(i)
    for lane in range(C):
        names = [changed.source_index(row * C + lane)[0] for row in range(rows)]
        for begin in [*range(0, row_of_change - 4095, 4096), row_of_change]:
            counted = Counter(names[begin : begin + 4096])
            assert counted == +Counter(quotas(second if begin == row_of_change else first))


def test_of_changes_at_one_row_the_last_holds() -> None:
    only = {name: {other: Fraction(other == name) for other in NAMES} for name in NAMES}
    changed = mix([(0, only["web"]), (9, only["wiki"]), (11, only["code"])], Options(seed=0, lanes=4))
    assert [changed.source_index(i)[0] for i in range(16)] == ["web"] * 12 + ["code"] * 4


@fewest
@given(sources(), options())
def test_a_mix_of_one_source_is_the_stream_of_this_source(source: Source, chosen: Options) -> None:
    alone = Stream(source, chosen, name="web", sources=1)
    mixed = Mix({"web": source}, [(0, {"web": Fraction(1)})], chosen)
    assert mixed.lanes == alone.lanes
    assert oracle.first_rows(mixed, 40) == oracle.first_rows(alone, 40)


# Section 9


@few
@given(sources(selected=True), options(), st.integers(0, 10**9))
def test_a_sample_is_a_run_of_the_ring_of_kept_tokens(source: Source, chosen: Options, i: int) -> None:
    samples = Samples(source, chosen)
    ring = all_tokens(file_order(source)) * 15
    begin = samples.begin(i)
    assert begin in range(len(samples.ring))
    end = begin + chosen.seq_len
    assert samples.row(i) == (ring[begin:end], ring[begin + chosen.shift : end + chosen.shift])


def test_samples_begin_everywhere_alike() -> None:
    samples = Samples(Source([oracle.memory_shard([list(range(10))], 2)], 2), Options(seed=1))
    counts = Counter(samples.begin(i) for i in range(5000))
    assert sorted(counts) == list(range(10))
    assert max(counts.values()) < 1.2 * min(counts.values())
