"""The version of this package."""

__version__ = "0.1.0"
PACKAGES = ("numpy", "tokenizers", "pyarrow", "numba", "orjson")  # their versions can change the bytes of a build
