"""The devices that ggml reports: their layers, what runs on them, and the RPC servers that lend some."""
