"""``shardwright import``: token ids of other tools -> a dataset."""

from __future__ import annotations

from typing import Any

from pipeline.objects.request_options import RequestOptions
from pipeline.progress import Progress
from pipeline.text.document import OnError

from .command import Command

DESCRIPTION = """\
Make a dataset from files of token ids: check the ids, split off validation documents, write shards and verify them.

  %(prog)s tokens/*.parquet --output shards --tokenizer gpt2 --tokens-key input_ids
  %(prog)s megatron/text_document.bin --output shards --tokenizer /models/llama
  %(prog)s fineweb_train_000001.bin --output shards --eos-id 50256

Parquet, Arrow and JSON Lines hold lists of ids in a column. NAME.bin next to NAME.idx is Megatron's. Any other .bin is a
flat array, as nanoGPT's; .bin and .npy are cut after each end-of-text id. Rules, languages and near dedup need text, so
they do not run. Exact copies are counted."""

EPILOG = (
    "exit status: 0 the dataset is complete; 1 an error; 2 wrong usage, or a value that cannot be used; 130 interrupted"
)
_SETTINGS = ("id_key", "keep_fields", "where", "val_fraction", "tokens_per_shard", "tokens_per_sample", "seed")

FLAGS = """\
SOURCE...     files, directories or patterns; Parquet, Arrow and JSON also by url
--output DIR  directory of the dataset: empty or new
--tokens-key  field or column of the lists of ids
--tokenizer   the tokenizer that made the ids: it checks them, and is copied to the output
--eos-id N    the id that ends documents (default: the tokenizer's)
--dtype       dtype of a flat .bin: uint16 or uint32
--on-error    if a document is bad: stop (default); records: skip and count it; skip: skip the rest of a damaged file, too
--quiet       print errors only"""


def run(
    sources: list[str],
    *,
    output: str,
    tokens_key: str = "input_ids",
    tokenizer: str | None = None,
    eos_id: int | None = None,
    dtype: str = "uint16",
    on_error: OnError = "stop",
    quiet: bool = False,
    settings: dict[str, Any],
    requests: RequestOptions,
) -> int:
    from pipeline.exchange.token_sources import import_tokens

    if "keep_fields" in settings:
        settings["keep_fields"] = settings["keep_fields"].split(",")
    manifest = import_tokens(
        sources,
        output,
        tokenizer=tokenizer,
        tokens_key=tokens_key,
        eos_id=eos_id,
        dtype=dtype,
        on_error=on_error,
        requests=requests,
        progress=Progress(quiet=quiet),
        **settings,
    )
    if not quiet:
        documents, tokens = manifest.counts["kept"], manifest.counts["tokens"]
        print(f"{output}: {documents:,} documents, {tokens:,} tokens, verified")
        for reason, number in manifest.counts["bad"].items():
            print(f"{number:,} skipped: {reason}")
        print(*manifest.counts.get("notes", ()), sep="\n", end="\n" * bool(manifest.counts.get("notes")))
    return 0


COMMAND = Command(
    run=run,
    flags=FLAGS,
    brief="SOURCE... --output DIR",
    description=DESCRIPTION,
    epilog=EPILOG,
    settings=_SETTINGS,
)
