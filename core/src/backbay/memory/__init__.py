"""Memory accounting: the ledger, its report, and the host's memory."""
