"""Checks the values of a configuration file: their types, their range, and known names."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import yaml

from packager.bundle import ImageSpec
from packager.declare import TASKS
from packager.errors import ConfigError
from packager.loaders.model_file import FUNCTION

DECLARATION_KEYS = ("preset", *(item.name for item in dataclasses.fields(ImageSpec)))
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

Preprocess = str | dict[str, Any]
Shape = tuple[int | None, ...]


class UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys; a typing error must not win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Returns the mapping, or raises `ConstructorError` at the second of two equal keys."""
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} occurs twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def yaml_problem(error: yaml.YAMLError) -> str:
    """Returns line, column and problem of a YAML error."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


@dataclass(frozen=True)
class Values:
    """Each method returns a checked value, or raises `ConfigError`.

    Attributes:
        origin: The file or command line, for messages.
        base: The folder that relative paths are relative to.
    """

    origin: str
    base: Path

    def text(self, value: object, key: str) -> str:
        """Text with at least one character."""
        if not isinstance(value, str) or not value.strip():
            self.fail(key, "text (quote it if it looks like a number)", value)
        return value

    def bundle_name(self, value: object, key: str) -> str:
        """A name that is safe as a folder and in a URL."""
        text = self.text(value, key)
        if not NAME.fullmatch(text):
            self.fail(key, "letters, digits, '_', '-' and '.', starting with no '.'", value)
        return text

    def one_of(self, value: object, key: str, known: tuple[str, ...]) -> str:
        """One of the `known` texts."""
        if value not in known:
            text = str(value)
            near = difflib.get_close_matches(text, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else ""
            self.fail(key, f"one of {', '.join(known)}", value, hint)
        return str(value)

    def task(self, value: object, key: str) -> str:
        """One of the manifest's tasks."""
        return self.one_of(value, key, TASKS)

    def texts(self, value: object, key: str) -> tuple[str, ...]:
        """A list of texts; a single one needs no list."""
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(self.text(item, key) for item in items)

    def weight_rules(self, value: object, key: str) -> tuple[str, ...]:
        """A list of rules for the weights of TF.js models."""
        from packager.targets import tfjs_weights

        texts = self.texts(value, key)
        tfjs_weights.parse(texts)
        return texts

    def switch(self, value: object, key: str) -> bool:
        """True or false."""
        if not isinstance(value, bool):
            self.fail(key, "true or false", value)
        return value

    def number(self, value: object, key: str, low: float = 0.0, high: float = 1e9) -> float:
        """A number from `low` to `high`."""
        # YAML 1.1 reads 1e-5, without a point, as text.
        number = _as_number(value)
        if number is None or not low <= number <= high:
            self.fail(key, f"a number from {low:g} to {high:g}", value)
        return number

    def fraction(self, value: object, key: str) -> float:
        """A number from 0 to 1."""
        return self.number(value, key, 0.0, 1.0)

    def fraction_limit(self, value: object, key: str) -> float | None:
        """A number from 0 to 1, or false for no limit."""
        return None if value is False else self.number(value, key, 0.0, 1.0)

    def limit(self, value: object, key: str) -> float | None:
        """A number that is not negative, or false for no limit."""
        return None if value is False else self.number(value, key)

    def whole_limit(self, value: object, key: str) -> int | None:
        """A positive whole number, or false for no limit."""
        return None if value is False else self.whole(value, key)

    def whole(self, value: object, key: str, least: int = 1) -> int:
        """A whole number, at least `least`."""
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.fail(key, f"a whole number, at least {least}", value)
        return value

    def seed(self, value: object, key: str) -> int:
        """A whole number, at least 0."""
        return self.whole(value, key, 0)

    def version(self, value: object, key: str) -> int | Literal["next"]:
        """A positive whole number, or `next`."""
        if value == "next":
            return "next"
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            self.fail(key, "a positive whole number or next", value)
        return number

    def path(self, value: object, key: str) -> Path:
        """A path, made absolute."""
        given = value if isinstance(value, Path) else Path(self.text(value, key))
        return Path(os.path.normpath(self.base / given.expanduser()))

    def location(self, value: object, key: str) -> str:
        """A path, made absolute, or `module:function`, which stays as it is."""
        is_function = isinstance(value, str) and FUNCTION.fullmatch(value)
        path = self.path(value, key)
        return str(value) if is_function and not path.exists() else str(path)

    def labels(self, value: object, key: str) -> str | tuple[str, ...]:
        """The path of a file, or the labels themselves."""
        if isinstance(value, (str, Path)):
            return str(self.path(value, key))
        if not isinstance(value, (list, tuple)):
            self.fail(key, "a file, or a list of labels", value)
        for item in value:
            # yes, no, on and off are booleans in YAML 1.1.
            if isinstance(item, bool) or not isinstance(item, (str, int)):
                self.fail(key, "texts (quote labels such as 'yes', 'no' or '1.5')", item)
        return tuple(str(item) for item in value)

    def input_shape(self, value: object, key: str) -> dict[str, Shape]:
        """Sizes with the batch axis, by input name; a bare list has the name ""."""
        by_name = value if isinstance(value, dict) else {"": value}
        return {str(name): self._shape(shape, key) for name, shape in by_name.items()}

    def _shape(self, value: object, key: str) -> Shape:
        sizes = value if isinstance(value, (list, tuple)) else [0]
        if not all(size is None or (type(size) is int and size > 0) for size in sizes):
            self.fail(key, "sizes with the batch axis, such as [1, 224, 224, 3]", value)
        return tuple(sizes)

    def preprocess(self, value: object, key: str) -> Preprocess:
        """A preset, a declaration (only its keys are checked), or either by input name."""
        if isinstance(value, str):
            return self.text(value, key)
        if not isinstance(value, dict) or not value:
            self.fail(key, "a preset such as 0..1, a declaration, or either by input name", value)
        by_name = all(isinstance(item, (str, dict)) for item in value.values())
        if not by_name or any(name in DECLARATION_KEYS for name in value):
            for name in value:
                if name not in DECLARATION_KEYS:
                    self.unknown(f"{key}.{name}", str(name), DECLARATION_KEYS)
            return value
        return {str(name): self.preprocess(item, f"{key}.{name}") for name, item in value.items()}

    def unknown(self, key: str, name: str, known: tuple[str, ...]) -> NoReturn:
        """Raises the error for an unknown key, with the known one that is most like it."""
        near = difflib.get_close_matches(name, known, n=1)
        raise ConfigError(
            f"{self.origin}: unknown key {key!r}",
            hint=f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(known)}.",
        )

    def fail(self, key: str, expected: str, value: object, hint: str = "") -> NoReturn:
        """Raises the error for a wrong value."""
        received = "nothing" if value is None else f"{value!r} ({type(value).__name__})"
        where = f"{self.origin}: {key}" if key else self.origin
        raise ConfigError(f"{where}: expected {expected}, received {received}", hint=hint)


def _as_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None
