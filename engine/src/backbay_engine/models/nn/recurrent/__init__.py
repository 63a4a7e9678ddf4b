"""The parts of recurrent blocks: convolutions, state-space models, the delta rule."""
