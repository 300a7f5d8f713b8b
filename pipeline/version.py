"""The version of this package."""

__version__ = "0.1.0"
PACKAGES = ("numpy", "tokenizers", "pyarrow", "numba", "orjson")  # whose versions can change a byte of a build
