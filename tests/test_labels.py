"""Label files, good and bad, and their count against the model's outputs."""

import pytest

from packager.errors import DataError
from packager.labels import check_labels, read_labels

DIGIT = {"name": "digit", "shape": [None, 3]}
SCORE = {"name": "score", "shape": [None, 1]}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"cat\ndog\n", ["cat", "dog"]),
        (b"\xef\xbb\xbfcat\r\ndog\r\n\r\n", ["cat", "dog"]),
        ("고양이\n개\n새".encode(), ["고양이", "개", "새"]),
        (b"  cat \n\tdog\n\n  \n", ["cat", "dog"]),
    ],
    ids=["plain", "bom-crlf", "korean", "spaces"],
)
def test_reads_labels(tmp_path, content, expected):
    path = tmp_path / "labels.txt"
    path.write_bytes(content)
    assert read_labels(path) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no labels"),
        (b"\n\n", "no labels"),
        (b"cat\n\ndog\n", "labels.txt:2: an empty line"),
        (b"cat\ndog\ncat\n", "'cat' occurs 2 times"),
        (b"\x89PNG\r\n\x1a\n\x00", "not UTF-8"),
        (b"cat\x00dog\n", "binary"),
        ("고양이\n".encode("euc-kr"), "not UTF-8"),
    ],
)
def test_refuses_bad_label_files(tmp_path, content, message):
    path = tmp_path / "labels.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_labels(path)


def test_names_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: the labels cannot be read: No such file"):
        read_labels(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("labels", "output", "task"),
    [
        (["a", "b", "c"], DIGIT, "classification"),
        (["a", "b", "c"], DIGIT, "multilabel"),
        (["no", "yes"], SCORE, "binary"),
        (["yes"], SCORE, "binary"),
        ([], DIGIT, "classification"),
        ([], SCORE, "regression"),
        (["a", "b"], {"name": "free", "shape": [None, None]}, "classification"),
    ],
)
def test_accepts_matching_labels(labels, output, task):
    check_labels(labels, [output], task)


@pytest.mark.parametrize(
    ("labels", "output", "task", "message"),
    [
        (["a", "b"], DIGIT, "classification", "2 labels, but the output 'digit' has 3 values"),
        (["a", "b", "c"], SCORE, "binary", "3 labels, but a binary model takes two"),
        (["a"], SCORE, "regression", "'regression' has no classes"),
    ],
)
def test_refuses_other_counts(labels, output, task, message):
    with pytest.raises(DataError, match=message):
        check_labels(labels, [output], task)


def test_suspects_a_background_label():
    with pytest.raises(DataError) as caught:
        check_labels(["background", "a", "b", "c"], [DIGIT], "classification")
    assert "background" in caught.value.hint
