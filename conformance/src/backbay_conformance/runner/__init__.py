"""Running the suite: what to try, in which process, and how a failure is made smaller and replayed."""
