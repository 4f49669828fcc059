"""What policies of shares state and solve: classes of like jobs, what these can do with their time, linear programs over it."""
