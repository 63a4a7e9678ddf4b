"""Weights in the forms that models read: mapped, packed, or converted to float32."""
