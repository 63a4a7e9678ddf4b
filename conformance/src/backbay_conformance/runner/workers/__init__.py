"""Worker processes: started, watched, and replaced when they die."""
