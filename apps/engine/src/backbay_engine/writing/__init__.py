"""Writing model files: in GGUF, with weights in the dtypes of a recipe."""

from .gguf_file import write_model
from .recipes import RECIPES, QuantizationRecipe

__all__ = ["RECIPES", "QuantizationRecipe", "write_model"]
