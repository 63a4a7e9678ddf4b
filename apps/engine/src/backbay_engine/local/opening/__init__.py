"""Opening a model: its layers placed on devices, its encoder beside it, its weights loaded, its sizes checked."""
