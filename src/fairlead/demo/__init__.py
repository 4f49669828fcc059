"""What `fairlead demo` shows: a dozen small jobs, the script that they run, and what is told of them while they do."""
