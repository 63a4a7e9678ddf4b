"""What is tried beyond single calls: graphs, memory, misuse, threads and sizes."""
