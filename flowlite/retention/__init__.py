"""What stays of tasks that have ended: removing them, pruning what they no longer need, and how much room they take."""
