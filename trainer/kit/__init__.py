"""What all trainers share: checkpoints, progress, jobs, intervals, drawing and reports."""
