"""Running items: one call or scenario, a group that Hypothesis draws, a hunt for the worst inputs, few shapes."""
