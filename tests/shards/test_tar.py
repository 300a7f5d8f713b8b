"""Foreign tars: every damage is named, every honest dialect is read."""

from __future__ import annotations

import contextlib
import io
import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CorruptShardError, ShardError, TruncatedShardError
from pipeline.shards.tar_members import TarDamage, walk
from tests.helpers.shard_samples import scan_tar

NAMES = ["a.txt", "folder/" + "b" * 120 + ".txt", "folder.v1/" + "ü" * 60 + ".json", "empty.txt"]
PAYLOADS = [b"hello", b"x" * 1500, "grüße".encode(), b""]


def make_tar(path: Path, format: int = tarfile.GNU_FORMAT, names: list[str] = NAMES, pax: bool = False) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for name, payload in zip(names, PAYLOADS, strict=True):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(payload), 1.5 if pax else 1
            tar.addfile(info, io.BytesIO(payload))
    return path


def plain_tar(path: Path) -> Path:
    """A ustar of four small members without the padding to 10,240 bytes that Python appends."""
    make_tar(path, tarfile.USTAR_FORMAT, ["a.txt", "b.txt", "c.txt", "d.txt"])
    end = scan_tar(path)[-1].data
    path.write_bytes(path.read_bytes()[: end + 1024])
    return path


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_of_every_dialect_are_read_as_tarfile_reads_them(tmp_path: Path, format: int) -> None:
    names = NAMES if format != tarfile.USTAR_FORMAT else ["d" * 80 + "/" + "e" * 60 + ".txt", *"bcd"]
    path = make_tar(tmp_path / "a.tar", format, names, pax=format != tarfile.USTAR_FORMAT)
    with tarfile.open(path) as tar:
        wanted = [(info.name, info.offset_data, info.size) for info in tar.getmembers()]
    assert [(member.name, member.data, member.size) for member in scan_tar(path)] == wanted
    assert [name for name, _, _ in wanted] == names


def test_pax_records_for_all_members_are_read_as_tarfile_reads_them(path: Path) -> None:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"path": "of-all.txt"}) as tar:
        for name in ("a.txt", "ü" * 60 + ".txt"):  # the second has a record of its own
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with tarfile.open(path) as tar:
        names = tar.getnames()
    assert [member.name for member in scan_tar(path)] == names == ["of-all.txt", "ü" * 60 + ".txt"]


def write_size(path: Path, raw: bytearray, header: int, size: bytes) -> None:
    """Write a tar with another field of a size in the header at a byte."""
    raw[header + 124 : header + 136] = size
    raw[header + 148 : header + 156] = b" " * 8
    raw[header + 148 : header + 156] = b"%06o\0 " % sum(raw[header : header + 512])
    path.write_bytes(raw)


def test_base_256_sizes_are_read(path: Path) -> None:
    plain_tar(path)
    raw = bytearray(path.read_bytes())
    write_size(path, raw, 0, b"\x80" + (5).to_bytes(11, "big"))
    assert scan_tar(path)[0].size == 5


def test_pax_size_overrides_the_header(path: Path) -> None:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.txt")
        info.size, info.pax_headers = 700, {"size": "700"}
        tar.addfile(info, io.BytesIO(b"y" * 700))
    raw = bytearray(path.read_bytes())
    write_size(path, raw, scan_tar(path)[0].data - 512, b"00000000000\0")
    assert scan_tar(path)[0].size == 700


def damaged(path: Path, raw: bytes | bytearray) -> str:
    path.write_bytes(raw)
    with pytest.raises(ShardError) as caught:
        scan_tar(path)
    assert str(path) in str(caught.value)
    assert "byte" in str(caught.value)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_cuts_are_named_where_tarfile_ends_quietly(path: Path) -> None:
    plain_tar(path)
    raw, members = path.read_bytes(), scan_tar(path)
    third = members[2]
    assert re.search(rf"Truncated.*'b.txt'.*byte {third.offset}.*between members", damaged(path, raw[: third.offset]))
    with tarfile.open(path, "r|") as quiet:
        assert len(list(quiet)) == 2
    assert "inside the header" in damaged(path, raw[: third.offset + 100])
    assert re.search("Truncated.*'c.txt'.*inside the payload", damaged(path, raw[: third.data + 3]))
    assert "end-of-archive" in damaged(path, raw[:-512])
    assert "TruncatedShardError" in damaged(path, raw[:-1])


def test_every_cut_anywhere_is_a_truncation(path: Path) -> None:
    plain_tar(path)
    raw = path.read_bytes()
    for size in range(1, len(raw)):
        with pytest.raises(TarDamage) as damage:
            list(walk(raw[:size]))
        assert damage.value.cut or size < 512, (size, damage)
    path.write_bytes(b"")
    with pytest.raises(TruncatedShardError, match="empty"):
        scan_tar(path)


def test_zeroed_blocks_and_bytes_after_the_end_are_corruption(path: Path) -> None:
    plain_tar(path)
    raw, members = path.read_bytes(), scan_tar(path)
    at = members[1].offset
    message = damaged(path, raw[:at] + bytes(512) + raw[at + 512 :])
    for said in ("CorruptShardError", f"byte {at}: a zeroed block", "'a.txt'"):
        assert said in message
    assert "after the end" in damaged(path, raw + b"garbage".ljust(512))
    assert "CorruptShardError" in damaged(path, raw + b"\0" * 100 + b"x")
    assert f"{len(raw) + 100} bytes, no multiple of 512: the file was cut" in damaged(path, raw + bytes(100))
    assert scan_tar(plain_tar(path)) == members  # and zeros after the end are padding
    path.write_bytes(raw + bytes(9216))
    assert scan_tar(path) == members


def test_any_flipped_header_byte_is_found(path: Path) -> None:
    plain_tar(path)
    raw, member = path.read_bytes(), scan_tar(path)[1]
    for at in range(member.offset, member.offset + 512):
        for flip in (0x01, 0x80):
            broken = raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :]
            try:
                found = list(walk(broken))
            except TarDamage:
                continue
            # The two bytes that end the checksum field may be NUL or space; their flips change nothing that is read.
            assert at - member.offset in range(148, 156), at
            assert found == scan_tar(path), at


def pax_tar(path: Path, payload: bytes, *, size: int = -1) -> Path:
    """A member ``a.txt`` after a PAX header of this payload; ``size``: what the header states in place of its length."""
    pax, member = tarfile.TarInfo("pax"), tarfile.TarInfo("a.txt")
    pax.type, pax.size = tarfile.XHDTYPE, len(payload) if size < 0 else size
    path.write_bytes(pax.tobuf() + payload.ljust(512, b"\0") + member.tobuf() + bytes(1024))
    return path


@pytest.mark.parametrize(
    ("payload", "size", "said"),
    [
        (b"12 size=1e3\n", -1, "CorruptShardError: .*'a.txt', byte 1024: a PAX size of '1e3'; copy"),
        (b"9 path=b\n99 x=y\n", -1, r"'pax', byte 0: a PAX header with the malformed record b'99 x=y\\n'; copy"),
        (b"9 path=b\n6 x=yz\n", -1, r"malformed record b'6 x=yz\\n'"),
        (b"9 path b\n", -1, "malformed record b'9 path b"),
        (b"3 \n", -1, "malformed record b'3 "),
        (b"x path=b\n", -1, "malformed record b'x path=b"),
        (b"", (1 << 20) + 1, "byte 0: a long name or PAX header of 1048577 bytes, more than 1048576; copy"),
        (b"", 1 << 20, "TruncatedShardError: .*'pax', byte 2560: the file ends inside a long name or PAX header"),
        (b"9 path=b\n", 2048, "malformed record"),
        (b"9 path=b\n", 2049, "the file ends inside a long name"),
    ],
)
def test_a_pax_header_that_is_damaged_is_named(path: Path, payload: bytes, size: int, said: str) -> None:
    assert re.search(said, damaged(path, pax_tar(path, payload, size=size).read_bytes()))
    raw = pax_tar(path, b"12 path=b=c\n").read_bytes()
    assert [member[:4] for member in scan_tar(path)] == [("b=c", 0, 1536, 0)]
    assert "byte 1024: a zeroed block where a member's header belongs" in damaged(path, raw[:1024] + bytes(1024))
    assert "the first header, byte 1024: the file ends inside the header" in damaged(path, raw[:1024])


def test_compressed_and_other_files_are_refused_by_what_they_are(path: Path) -> None:
    for head, kind in {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}.items():
        said = f"the first header, byte 0: compressed with {kind}; shards are plain"
        assert said in damaged(path, head + b"\1" * 600)
    assert "the first header, byte 0: not a tar: no header here; copy it" in damaged(path, b"{" * 2048)


def test_a_link_has_no_payload_whatever_it_states_and_a_long_target(path: Path) -> None:
    link = tarfile.TarInfo("a.txt")
    link.type, link.linkname, link.size = tarfile.SYMTYPE, "t" * 120, 700
    raw = link.tobuf(tarfile.GNU_FORMAT) + tarfile.TarInfo("b.txt").tobuf() + bytes(1024)
    path.write_bytes(raw)
    found = [(member.name, member.data, member.size) for member in scan_tar(path)]
    assert found == [("a.txt", 1536, 0), ("b.txt", 2048, 0)]
    cut = tarfile.TarInfo("n" * 120).tobuf(tarfile.GNU_FORMAT)[:1024]
    assert "byte 1024: the file ends inside the header" in damaged(path, cut)


def test_a_header_that_cannot_be_is_damage(path: Path) -> None:
    raw = bytearray(plain_tar(path).read_bytes())
    write_size(path, raw, 0, b"\xff" * 12)
    assert "byte 0: not a tar: no header here" in damaged(path, path.read_bytes())
    raw[:2048] = tarfile.TarInfo("a.txt").tobuf() + b"\x1f\x8b".ljust(1536)
    assert "member 'a.txt', byte 512: the header that follows is damaged" in damaged(path, raw)


def test_sparse_members_are_refused(path: Path) -> None:
    sparse = tarfile.TarInfo("a.txt")
    sparse.type = tarfile.GNUTYPE_SPARSE
    assert "'a.txt', byte 0: a sparse member" in damaged(path, sparse.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={}) as tar:
        info = tarfile.TarInfo("a.txt")
        info.pax_headers = {"GNU.sparse.major": "1"}
        tar.addfile(info)
    with pytest.raises(CorruptShardError, match="sparse"):
        scan_tar(path)


@given(st.binary(max_size=3000))
def test_arbitrary_bytes_never_crash_the_walk(raw: bytes) -> None:
    with contextlib.suppress(TarDamage):
        list(walk(raw))
