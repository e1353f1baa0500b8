"""A file that is not UTF-8 is refused, with the command that makes it UTF-8 where that is known."""

from __future__ import annotations

import re
import subprocess

import pytest

from sightline.errors import SightlineError
from sightline.user_files import read_text

GERMAN = "image,caption\n1.jpg,Zwei Hunde – groß und „klein“\n2.jpg,Der Hund’s Ball …\n"
FRENCH = "image,caption\n1.jpg,Une fille à l'école près d'un château\n"
KNOWN = [
    ("utf-16", GERMAN, "is UTF-16"),
    ("utf-16-le", GERMAN, "is UTF-16LE"),
    ("utf-16-be", GERMAN, "is UTF-16BE"),
    ("utf-32", GERMAN, "is UTF-32"),
    ("windows-1252", GERMAN, "line 2: the byte 0x96 is not UTF-8"),
    ("latin-1", FRENCH, "line 2: the byte 0xe0 is not UTF-8"),
]
UNKNOWN = [
    ("mac-roman", FRENCH),
    ("cp850", FRENCH),
    ("gb18030", "1.jpg,两只狗在草地上奔跑\n"),
    ("shift-jis", "1.jpg,二匹の犬が走っている\n"),
    ("koi8-r", "1.jpg,Две собаки бегут по траве\n"),
]


@pytest.mark.parametrize(("encoding", "text", "fault"), KNOWN, ids=[k[0] for k in KNOWN])
def test_the_command_that_is_shown_makes_the_text(tmp_path, monkeypatch, encoding, text, fault):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my captions.csv"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(SightlineError) as error:
        read_text(path)
    assert f"{path}: {fault}" in str(error.value)
    (command,) = re.findall("`(iconv .*)`", str(error.value))
    subprocess.run(command, shell=True, check=True)
    assert read_text(path) == text
    assert [path] == [*tmp_path.iterdir()]


@pytest.mark.parametrize(("encoding", "text"), UNKNOWN, ids=[k[0] for k in UNKNOWN])
def test_no_encoding_is_named_that_is_not_known(tmp_path, encoding, text):
    path = tmp_path / "captions.csv"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(SightlineError, match="find out its encoding") as error:
        read_text(path)
    assert "iconv -f ENCODING -t utf-8" in str(error.value)


def test_text_with_a_zero_is_no_utf_16(tmp_path):
    path = tmp_path / "captions.csv"
    path.write_bytes(b"image,caption\n1.jpg,a\0b\n")
    with pytest.raises(SightlineError, match="line 2: contains the control character"):
        read_text(path)
