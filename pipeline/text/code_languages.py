"""Languages of code and documentation by the ending of a file name. The names are those of GitHub (Linguist)."""

from __future__ import annotations

from pathlib import PurePath

_NAMES = {
    "Makefile": "Makefile",
    "Dockerfile": "Dockerfile",
    "CMakeLists.txt": "CMake",
}
_LANGUAGES = {
    "Ada": "adb ads", "Assembly": "asm s", "Batchfile": "bat cmd", "C": "c h", "C#": "cs", "C++": "cc cpp cxx hh hpp hxx",
    "CMake": "cmake", "CSS": "css", "Clojure": "clj cljs", "CoffeeScript": "coffee", "Common Lisp": "lisp", "Cuda": "cu cuh",
    "Cython": "pyx pxd", "D": "d", "Dart": "dart", "Elixir": "ex exs", "Elm": "elm", "Emacs Lisp": "el", "Erlang": "erl hrl",
    "F#": "fs fsx", "Fortran": "f f90 f95 for", "GLSL": "glsl", "Go": "go", "Groovy": "groovy", "HCL": "tf hcl",
    "HTML": "html htm", "Haskell": "hs", "INI": "ini cfg", "JSON": "json", "Java": "java", "JavaScript": "js jsx mjs cjs",
    "Julia": "jl", "Jupyter Notebook": "ipynb", "Kotlin": "kt kts", "Lean": "lean", "Lua": "lua", "MATLAB": "m", "Makefile": "mk",
    "Markdown": "md markdown", "Nim": "nim", "Nix": "nix", "OCaml": "ml mli", "Objective-C": "mm", "PHP": "php",
    "Pascal": "pas", "Perl": "pl pm", "PowerShell": "ps1 psm1", "Protocol Buffer": "proto", "Python": "py pyi", "R": "r",
    "Racket": "rkt", "Ruby": "rb", "Rust": "rs", "SCSS": "scss", "SQL": "sql", "SVG": "svg", "Scala": "scala", "Scheme": "scm",
    "Shell": "sh bash zsh", "Solidity": "sol", "Starlark": "bzl", "Swift": "swift", "SystemVerilog": "sv svh", "TOML": "toml",
    "Tcl": "tcl", "TeX": "tex sty", "Text": "txt", "TypeScript": "ts tsx", "VHDL": "vhd vhdl", "Verilog": "v", "Vue": "vue",
    "XML": "xml xsd", "YAML": "yaml yml", "Zig": "zig", "reStructuredText": "rst",
}  # fmt: skip
_BY_ENDING = {ending: language for language, endings in _LANGUAGES.items() for ending in endings.split()}


def language_of(name: str) -> str | None:
    """Return the language of a file by its name, or None if the ending is unknown.

    >>> language_of("src/main.RS"), language_of("Makefile"), language_of("a.unknown")
    ('Rust', 'Makefile', None)
    """
    path = PurePath(name)
    return _NAMES.get(path.name) or _BY_ENDING.get(path.suffix[1:].lower())
