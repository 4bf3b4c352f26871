"""`packager diff`: what differs between two bundles, `.tflite` files or TF.js models.

TensorFlow is not imported. Of a SavedModel the variables are compared, not the graph.
"""

from packager.diff.compare import SCHEMA, Comparison, Difference, compare, to_json, to_text
from packager.diff.contents import Side, read

__all__ = ["SCHEMA", "Comparison", "Difference", "Side", "compare", "read", "to_json", "to_text"]
