"""What runs in the processes that `confirm` starts: the only part of accumlint that imports torch."""
