"""Trained models, ready to use: `load` opens a folder, `Model` predicts."""
