"""What compiled loops need beyond numba: arrays at addresses, copies, early requests to memory, and atomic words.

Addresses are those of memory that the caller keeps alive.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _typed_pointer(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def _typed_copy(typing: Any, target: Any, source: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, origin = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _typed_fetch(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To read, to keep in all caches, data.
        builder.call(prefetch, [builder.inttoptr(arguments[0], cgutils.voidptr_t), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _typed_swap(typing: Any, address: Any, expected: Any, new: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        swapped = builder.cmpxchg(word, arguments[1], arguments[2], "seq_cst", "seq_cst")
        return builder.extract_value(swapped, 1)

    return types.bool_(types.int64, types.int64, types.int64), generate


array_at: Any = numba.carray
pointer: Any = intrinsic(_typed_pointer)  # address -> pointer
copy_bytes: Any = intrinsic(_typed_copy)  # target, source, bytes
fetch: Any = intrinsic(_typed_fetch)  # asks the memory for the line at an address, which need not be there
# address of an int64, expected, new -> whether the first was the second, and is the third now; one step for all processes,
# after all reads and writes before it
swap_if: Any = intrinsic(_typed_swap)
