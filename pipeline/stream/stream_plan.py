"""Values computed from a config and its data: the lanes of a sequential stream, and the shape that a state holds.

These functions read the data, which a config never does: a table of extents, or texts to count and hash their records. A source
caches the result.
"""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from .lanes import Lanes, best_fit_lanes_a_row, make_lanes
from .layout import DocumentLayout
from .order.mixture import weights_to_json
from .schedule import Schedule
from .settings import StreamSettings

ORDER = 2  # the version of the order of documents; a state of another version is refused


def sequential_lanes(config: StreamSettings, world_size: int) -> Lanes:
    """Return the lanes of a sequential stream. The source with most documents decides; text is read to count documents.

    Raises ``ConfigError`` for lanes that the rows of a global batch cannot share, or that documents are too few for.
    """
    rows, sources = world_size * (config.batch_size or 1), config.sources.by_name.values()
    if not config.sources.is_mix and any(config.sources.live):
        if config.lanes is not None:
            raise ConfigError(
                f"lanes={config.lanes}: a live source has one lane on each rank; leave lanes out of .shuffle()"
            )
        return Lanes(rows, rows)
    most = None
    if config.best_fit:  # each lane holds a window of each source
        tokens, item = max(source.total_tokens for source in sources), sum(source.token_bytes for source in sources)
        most = best_fit_lanes_a_row(config.stated_layout().sequence_stride, rows, tokens, item)

    def records(most: int) -> int:
        return max(source.records(most) for source in sources)

    endless = config.epochs is None and config.sources.counted and not config.sources.is_mix
    if endless and config.lanes and (count := records(config.lanes)) < config.lanes:
        raise ConfigError(
            f"lanes={config.lanes}: an epoch has {count:,} documents, so a lane would have none and wait for ever; leave lanes "
            "out of .shuffle()"
        )
    return make_lanes(rows, config.lanes, records, most, is_shuffled=config.seed is not None)


def stream_lanes(config: StreamSettings, world_size: int) -> int:
    """Return how many lanes the stream has on ``world_size`` ranks."""
    return sequential_lanes(config, world_size).count if config.sequential else config.lane_count


def shape(config: StreamSettings, world_size: int) -> dict[str, Any]:
    """Return the values that the order depends on: a state made under one shape is refused under another.

    In a sequential stream, the global batch is one of them, so the shape depends on ``world_size``.
    """
    layout, sources = config.layout or DocumentLayout(), config.sources
    shape: dict[str, Any] = {"order": ORDER, "split": sources.split, "kind": layout.kind}
    shape |= {"seed": config.seed, "epochs": config.epochs}
    if any(sources.live):
        shape |= {"ranks": world_size}
    if layout.interleaved:
        lanes = stream_lanes(config, world_size)
        windows = {name: one.window(lanes, **config.window_options) for name, one in sources.by_name.items()}
        by_name = sources.is_mix and sources.counted  # a mix of texts alone has one window, as stated
        shape |= {"window": windows if by_name else next(iter(windows.values())), "lanes": lanes}
    shape |= layout.fields()
    if config.sequential:
        shape |= {
            "global_batch": world_size * (config.batch_size or 1),
            "filters": [transform.name for transform in config.filters],
        }
        shape |= {"best_fit": layout.best_fit}
    if config.sequential or config.document_maps:
        shape |= {"document_maps": [transform.name for transform in config.document_maps]}
    if sources.is_mix:
        weights = config.weights
        if isinstance(weights, Schedule):
            shape |= {"weights": weights.to_json() | {"sequences": config.phases}}
        else:
            shape |= {"weights": weights_to_json(weights)}
        if layout.bucket and config.stopping_strategy is not None:
            shape |= {"end": config.end_of_mix}
    return {**shape, "data": sources.fingerprints()}
