"""Base classes with the extension points of Keras 2, for code ported from the Model Garden.

A port replaces a base class of Keras by its counterpart here only where a subclass relies on what
Keras 3 does not have. New code should subclass Keras' own classes. See docs/porting.md.
"""

from official_lite.keras2.attention import MultiHeadAttention as MultiHeadAttention
from official_lite.keras2.layers import Keras2Habits as Keras2Habits, Layer as Layer
