"""HTTP as all APIs share it: bodies, answers, guards."""
