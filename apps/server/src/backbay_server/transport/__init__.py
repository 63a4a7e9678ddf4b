"""HTTP as all APIs share it: bodies, answers, checks of requests."""
