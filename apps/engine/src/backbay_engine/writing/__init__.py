"""Writing model files: in GGUF, with weights in the dtypes of a recipe."""

from .conversion import Conversion
from .gguf_file import Output, write_model, write_models
from .recipes import RECIPES, QuantizationRecipe

__all__ = ["RECIPES", "Conversion", "Output", "QuantizationRecipe", "write_model", "write_models"]
