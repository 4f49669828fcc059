"""What a training script uses: a lease around its loop, reports, checkpoints. It imports nothing else of Fairlead and nothing
beyond the standard library, and outside Fairlead it does nothing at all."""
