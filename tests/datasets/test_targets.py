"""Targets in the one form of each task, and what is said about those that do not fit it."""

import numpy as np
import pytest

from packager.datasets.targets import Answer, check_targets, class_numbers, folder_classes
from packager.errors import DataError

TEN = Answer("classification", (10,))
THREE = Answer("classification", (3,))
SCORE = Answer("binary", (1,))
SEVERAL = Answer("multilabel", (3,))
VALUE = Answer("regression", (1,))
BOX = Answer("regression", (2, 2))
HOT = np.eye(3)[[2, 0, 1]]


def fit(targets, answer, labels=()):
    targets = np.asarray(targets)
    return check_targets(targets, len(targets), labels, answer, "data.npz")


@pytest.mark.parametrize(
    ("targets", "answer", "expected"),
    [
        ([2, 0, 1], THREE, [2, 0, 1]),
        (np.array([2, 0, 1], np.uint8), THREE, [2, 0, 1]),
        ([2.0, 0.0, 1.0], THREE, [2, 0, 1]),
        ([[2], [0], [1]], THREE, [2, 0, 1]),
        # As many samples as classes, and not.
        (HOT, THREE, [2, 0, 1]),
        (HOT[:2], THREE, [2, 0]),
        (HOT.astype(bool), THREE, [2, 0, 1]),
        (HOT[:, None, None], Answer("classification", (1, 1, 3)), [2, 0, 1]),
        (HOT, Answer("classification", (1, 1, 3)), [2, 0, 1]),
        ([2, 0, 17], Answer("classification", (None,)), [2, 0, 17]),
        (HOT, Answer("classification", (None,)), [2, 0, 1]),
        ([0, 1, 1], SCORE, [0, 1, 1]),
        ([False, True, True], SCORE, [0, 1, 1]),
        ([[0.0], [1.0], [1.0]], SCORE, [0, 1, 1]),
        ([True, False], Answer("binary", ()), [1, 0]),
    ],
)
def test_class_numbers(targets, answer, expected):
    found = fit(targets, answer)
    assert found.dtype == np.int64
    assert found.tolist() == expected


def test_texts_become_class_numbers():
    assert fit(["cat", "ant"], THREE, ["ant", "bee", "cat"]).tolist() == [2, 0]
    assert fit(["cat", "dog"], SCORE, ["cat"]).tolist() == [1, 0]
    assert fit([["cat"], ["ant"]], THREE, ["ant", "bee", "cat"]).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("targets", "answer", "expected"),
    [
        ([[1, 0, 1], [0, 0, 0]], SEVERAL, [[1, 0, 1], [0, 0, 0]]),
        ([[True, True, True]], SEVERAL, [[1, 1, 1]]),
        ([1, 0, 1], Answer("multilabel", (1,)), [[1], [0], [1]]),
        ([0.5, -2.0], VALUE, [[0.5], [-2]]),
        ([[3], [4]], VALUE, [[3], [4]]),
        ([[0.5], [-2.0]], Answer("regression", ()), [0.5, -2]),
        ([[[1, 2], [3, 4]]], BOX, [[[1, 2], [3, 4]]]),
        ([[1.5, 2.5, 3.5]], Answer("regression", (None,)), [[1.5, 2.5, 3.5]]),
    ],
)
def test_labels_and_values(targets, answer, expected):
    found = fit(targets, answer)
    assert found.dtype == np.float32
    assert found.tolist() == expected


def test_without_a_task_they_stay_as_they_came():
    values = np.array([[4, 7]])
    assert fit(values, Answer("none", (2,))) is values


@pytest.mark.parametrize(
    ("targets", "answer", "message", "hint"),
    [
        (np.arange(1, 11), TEN, "from 1 to 10; .*10 classes they must be 0 to 9", "start at 0"),
        ([0, 10], TEN, "from 0 to 10; ", "Correct the targets"),
        ([-1, 2], TEN, "from -1 to 2; ", "Correct the targets"),
        ([-1, 2], Answer("classification", (None,)), "must not be negative", "Correct"),
        ([1, 2], SCORE, r"'binary' with 2 classes they must be 0 to 1", "start at 0"),
        ([-1, 1], SCORE, "from -1 to 1", "Correct"),
        ([0.25, 1], SCORE, r"received fractions such as 0\.25", "--task regression"),
        (HOT, TEN, r"'classification' with 10 classes expected class numbers \[N\]", "--task"),
        (HOT[:, :2], SCORE, r"class numbers \[N\], received targets of shape \[3, 2\]", "--task"),
        ([[1, 1, 0]], THREE, "the target of sample 0 names 2 classes", "--task multilabel"),
        ([[0, 1, 0], [0, 0, 0]], THREE, "sample 1 names 0 classes", "--task multilabel"),
        ([[0.9, 0.05, 0.05]], THREE, r"hold 0 and 1, received 0\.9", "true classes"),
        ([0, 1, 1], SEVERAL, r"for each label, \[N, 3\], received .* \[3\]", "--task"),
        ([[0, 1]], SEVERAL, r"\[N, 3\], received targets of shape \[1, 2\]", "--task"),
        ([[0, 1, 2]], SEVERAL, "hold 0 and 1, received 2", "true classes"),
        ([[1.0, 2.0]], VALUE, r"values \[N, 1\], received targets of shape \[1, 2\]", "--task"),
        ([1.0, 2.0], BOX, r"values \[N, 2, 2\], received targets of shape \[2\]", "--task"),
        ([[1, 2, 3, 4]], BOX, r"received targets of shape \[1, 4\]", "--task"),
        (["cat"], THREE, "the targets are texts, and no labels", "--labels"),
        ([np.nan, 1], VALUE, "NaN or infinities", ""),
    ],
)
def test_targets_that_do_not_fit(targets, answer, message, hint):
    with pytest.raises(DataError, match=message) as caught:
        fit(targets, answer)
    assert caught.value.message.startswith("data.npz: ")
    assert hint in caught.value.hint


def test_another_count():
    with pytest.raises(DataError, match="6 samples, but 5 targets"):
        check_targets(np.arange(5), 6, (), TEN, "data.npz")


@pytest.mark.parametrize(
    ("texts", "labels", "expected"),
    [
        (["b", "a", "b"], ["a", "b"], [1, 0, 1]),
        (["1", "0"], ["0", "1"], [1, 0]),
        (["2", "3", "1"], ["1", "2", "3"], [1, 2, 0]),
        (["0", "2"], ["a", "b", "c"], [0, 2]),
        (["yes", "no"], ["yes"], [1, 0]),
    ],
)
def test_texts_are_all_labels_or_all_numbers(texts, labels, expected):
    assert class_numbers(texts, labels, "data") == expected


def test_texts_that_could_be_both_are_refused():
    """Folders 0, 1, 2 and the labels 1, 2, 3: taking 1 and 2 as labels would merge two classes."""
    with pytest.raises(DataError, match="class numbers or labels"):
        class_numbers(["0", "1", "2"], ["1", "2", "3"], "data")


def test_two_folders_of_one_class_are_refused():
    answer = Answer("classification", (2,))
    with pytest.raises(DataError, match="same class"):
        folder_classes(["a", "0"], ["a", "b"], answer, "data")
